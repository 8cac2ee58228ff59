# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest import EstimatorSpec, ModeKeys, RunConfig
from skest.hooks import CheckpointListener, Hook, Run

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


def test_whether_all_gradients_are_watched():
    class Watching(Hook):
        def after_backward(self, run):
            pass

    class Rarely(Watching):
        def wants_gradients(self, run):
            return False

    hooks = (Hook(), Watching(), Rarely())
    assert [hook.watches_gradients for hook in hooks] == [False, True, True]
    assert [hook.watches_all_gradients for hook in hooks] == [False, True, False]
    assert Watching().wants_gradients(Run(SPEC, RunConfig()))
