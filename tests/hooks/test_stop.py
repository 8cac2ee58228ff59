# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator
from skest.hooks import StopAtStepHook
from tests._models import model_fn, table_fn


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        ({"num_steps": 6}, 10),
        ({"last_step": 6}, 6),
        ({"last_step": 4}, 4),
        # tf.estimator takes one step too many here.
        ({"last_step": 3}, 4),
    ],
)
def test_where_training_stops_after_four_steps(arguments, last):
    estimator = Estimator(model_fn).train(table_fn(num_epochs=None), steps=4)
    hook = StopAtStepHook(**arguments)
    estimator.train(table_fn(num_epochs=None), hooks=[hook])
    assert estimator.checkpoint.global_step == last


def test_can_be_used_again():
    hook = StopAtStepHook(num_steps=2)
    estimator = Estimator(model_fn)
    for expected in (2, 4):
        estimator.train(table_fn(num_epochs=None), hooks=[hook])
        assert estimator.checkpoint.global_step == expected


@pytest.mark.parametrize("arguments", [{}, {"num_steps": 1, "last_step": 1}])
def test_exactly_one_argument(arguments):
    with pytest.raises(ValueError, match="Exactly one of 'num_steps' and 'last_step'"):
        StopAtStepHook(**arguments)
