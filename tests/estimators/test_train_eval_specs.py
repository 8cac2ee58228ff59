# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from skest import EvalSpec, TrainSpec
from skest.export import FinalExporter
from skest.hooks import CheckpointListener, Hook
from tests._models import table_fn

INPUT_FN = table_fn()


def test_defaults():
    train, evaluate = TrainSpec(INPUT_FN), EvalSpec(INPUT_FN)
    assert dataclasses.astuple(train)[1:] == (None, (), ())
    assert (evaluate.steps, evaluate.name, evaluate.eval_every_steps) == (
        100,
        None,
        None,
    )
    assert (evaluate.start_delay_secs, evaluate.throttle_secs) == (120, 600)
    assert evaluate.hooks == evaluate.exporters == ()


@pytest.mark.parametrize(
    ("spec", "field", "make"),
    [
        (TrainSpec, "hooks", Hook),
        (TrainSpec, "saving_listeners", CheckpointListener),
        (EvalSpec, "hooks", Hook),
        (EvalSpec, "exporters", lambda: FinalExporter("final")),
    ],
)
def test_one_or_several_or_none(spec, field, make):
    one, other = make(), make()
    for given, expected in [
        (None, ()),
        (one, (one,)),
        ([one, other], (one, other)),
        (iter([one]), (one,)),
    ]:
        assert getattr(spec(INPUT_FN, **{field: given}), field) == expected
    for wrong in (3, [3], "abc"):
        with pytest.raises(
            TypeError, match=f"'{field}' of {spec.__name__} must be inst"
        ):
            spec(INPUT_FN, **{field: wrong})


@pytest.mark.parametrize("spec", [TrainSpec, EvalSpec])
def test_are_frozen_and_need_a_function(spec):
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec(INPUT_FN).input_fn = None
    with pytest.raises(
        TypeError, match=f"'input_fn' of {spec.__name__} must be a func"
    ):
        spec([1, 2])


@pytest.mark.parametrize(
    ("spec", "field", "values", "error"),
    [
        (TrainSpec, "max_steps", [0, -1], ValueError),
        (TrainSpec, "max_steps", [1.5, True], TypeError),
        (EvalSpec, "steps", [0, -1], ValueError),
        (EvalSpec, "steps", ["1"], TypeError),
        (EvalSpec, "eval_every_steps", [0], ValueError),
        (EvalSpec, "start_delay_secs", [-1, float("nan")], ValueError),
        (EvalSpec, "throttle_secs", [-1], ValueError),
        (EvalSpec, "throttle_secs", [None], TypeError),
        (EvalSpec, "name", [""], ValueError),
        (EvalSpec, "name", [3], TypeError),
    ],
)
def test_numbers_and_names(spec, field, values, error):
    for value in values:
        with pytest.raises(error, match=f"'{field}' of {spec.__name__} must"):
            spec(INPUT_FN, **{field: value})
