# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch

from skest import EstimatorSpec, ModeKeys
from skest.hooks import CheckpointListener, EpochwiseHook, Hook

SPEC = EstimatorSpec(ModeKeys.PREDICT, network=torch.nn.Identity(), predictions=dict)


def test_methods_of_session_run_hooks_are_refused():
    for former, present in [
        ("before_run", "before_step"),
        ("after_run", "after_step"),
        ("after_create_session", "begin"),
    ]:
        method = {former: lambda self, run_context: None}
        with pytest.raises(
            TypeError, match=f"'{former}' .* never called.* Write {present}"
        ):
            type("Ported", (Hook,), method)
        with pytest.raises(TypeError, match=f"Ported has the method '{former}'"):
            type("Ported", (type("Mixin", (), method), Hook), {})


@pytest.mark.parametrize(
    ("base", "wrong", "right"),
    [
        (Hook, "after_stp", "after_step"),
        (EpochwiseHook, "endepoch", "end_epoch"),
        (CheckpointListener, "aftersave", "after_save"),
    ],
)
def test_methods_that_are_nearly_called_are_warned_of(base, wrong, right):
    with pytest.warns(UserWarning, match=f"never calls Own.{wrong}.* mean '{right}'"):
        type("Own", (base,), {wrong: lambda self, run: None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = dict.fromkeys(["send", f"_{wrong}"], lambda self: None)
        type("Own", (base,), own | {right: lambda self, *arguments: None})


def test_methods_take_what_they_are_called_with():
    for base, name, method in [
        (Hook, "begin", lambda self: None),
        (Hook, "after_step", lambda self, run: None),
        (Hook, "end", lambda self, run, session: None),
        (CheckpointListener, "begin", lambda self: None),
        (CheckpointListener, "after_save", lambda self, session, step: None),
    ]:
        with pytest.raises(
            TypeError, match=rf"Ported.{name} takes .*Write it as {name}\("
        ):
            type("Ported", (base,), {name: method})
        type("Open", (base,), {name: lambda self, *arguments: None})
