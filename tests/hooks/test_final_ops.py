# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator
from skest.hooks import FinalOpsHook
from tests._models import At, model_fn, raising, table_fn


@pytest.mark.parametrize(
    ("final_ops", "values"),
    [
        (lambda run: run.global_step, 5),
        ({"a": lambda run: run.global_step, "b": lambda run: run.mode}, {"a": 5}),
    ],
)
def test_computes_at_the_end(final_ops, values):
    hook = FinalOpsHook(final_ops)
    assert hook.final_ops_values is None
    Estimator(model_fn).train(table_fn(), [hook])
    if isinstance(values, dict):
        assert hook.final_ops_values == {**values, "b": "train"}
    else:
        assert hook.final_ops_values == values


def test_also_in_an_evaluation():
    hook = FinalOpsHook(lambda run: run.mode)
    Estimator(model_fn).train(table_fn()).evaluate(table_fn(), hooks=[hook])
    assert hook.final_ops_values == "eval"


def test_an_error_leaves_no_values():
    hook = FinalOpsHook(lambda run: 1)
    estimator = Estimator(model_fn).train(table_fn(), [hook])
    with pytest.raises(OSError, match="broken"):
        estimator.train(table_fn(), [hook, At(7, raising(OSError("broken")))])
    assert hook.final_ops_values is None


@pytest.mark.parametrize("final_ops", [3, {"a": 3}])
def test_only_functions(final_ops):
    with pytest.raises(TypeError, match="'final_ops' must be a function .*; got 3"):
        FinalOpsHook(final_ops)
