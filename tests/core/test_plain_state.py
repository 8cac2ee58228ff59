# SPDX-License-Identifier: Apache-2.0
"""State as plain data, and back."""

from pathlib import Path

import numpy as np
import pytest

from skest import RunConfig
from skest import feature_columns as fc
from skest.adapters.targets.base import TargetScale
from skest.core.plain_state import from_plain, to_plain
from skest.distributed import ClusterSpec, DataParallel, TaskConfig


def kinds(plain):
    """Return the types in plain data."""
    found = {type(plain)}
    if isinstance(plain, dict):
        return found.union(*map(kinds, plain), *map(kinds, plain.values()))
    if isinstance(plain, list | tuple | set):
        return found.union(*map(kinds, plain))
    return found


PLAIN = {dict, list, tuple, set, str, int, float, bool, bytes, type(None), np.ndarray}


def test_there_and_back():
    for value in [
        None,
        {"a": [1, 2.5, "x", b"y", True, (None, {3})]},
        {1: "one", ("a", 2): "pair", None: 0},
        {"__skest__": "os:system", "state": {}},  # a dictionary of the user's
        Path("models") / "a",
        RunConfig(model_dir="models", random_seed=3),
        RunConfig(
            train_distribute=DataParallel(),
            task=TaskConfig("worker", 0, ClusterSpec({"chief": [""], "worker": [""]})),
        ),
        TargetScale.none(2).scale.tolist(),
        fc.numeric_column("x", normalizer="standard").get_params(),
    ]:
        plain = to_plain(value)
        assert kinds(plain) <= PLAIN
        assert from_plain(plain) == value


def test_only_classes_of_skest_are_made():
    for name in [
        "os:system",
        "subprocess:Popen",
        "skestra:Thing",
        "skest.estimators.estimator:os",  # imported there
        "skest.estimators.estimator:Path",
        "skest.adapters.dnn:dnn_model_fn",  # no class
        "skest.adapters.dnn:Nothing",
        "skest.adapters.former:Thing",  # of another version
        "skest",
    ]:
        with pytest.raises(
            ValueError, match=f"names '{name}', which is no class of skest"
        ):
            from_plain({"__skest__": name, "state": {}})
