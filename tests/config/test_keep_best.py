# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import KeepBest, RunConfig


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"number": 0}, ValueError, "'number' of KeepBest"),
        ({"number": 1.5}, TypeError, "'number' of KeepBest"),
        ({"metric": ""}, ValueError, "'metric' of KeepBest must not be empty"),
        ({"metric": 3}, TypeError, "must be the name of a metric; got 3"),
        ({"eval_name": 3}, TypeError, "'eval_name' of KeepBest must be a string"),
    ],
)
def test_wrong_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        KeepBest(**arguments)


def test_a_configuration_takes_nothing_else():
    with pytest.raises(TypeError, match=r"'keep_best' must be a skest\.KeepBest"):
        RunConfig(keep_best=3)
    rule = KeepBest(2, "auc", greater_is_better=True)
    assert RunConfig().replace(keep_best=rule).keep_best == rule
