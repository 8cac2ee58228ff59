# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest import Estimator, EstimatorSpec, RunConfig
from skest.hooks import LRScheduleHook
from tests._models import Rates, linear, model_fn, squared_loss, table_fn

ENDLESS = table_fn(num_epochs=None)


def rate(step):
    return 0.1 / (1 + step)


def make(**params):
    return Estimator(model_fn, params=params, config=RunConfig(random_seed=0))


def two_optimizers(features, labels, mode):
    network = linear()
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_loss,
        predictions=lambda z: {"y": z},
        optimizer=[
            torch.optim.SGD([network.weight], lr=0.5),
            torch.optim.SGD([network.bias], lr=0.25),
        ],
    )


def test_is_what_a_rate_of_the_model_is():
    hooked = make(optimizer="adam", lr=0.3)
    for steps in (3, 4):  # the schedule goes on with the training
        hooked.train(ENDLESS, [LRScheduleHook(rate)], steps=steps)
    model = make(optimizer="adam", lr=rate)
    for steps in (3, 4):
        model.train(ENDLESS, steps=steps)
    for name in ("weight", "bias"):
        assert torch.equal(
            hooked.checkpoint.variables[name], model.checkpoint.variables[name]
        )


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ((rate,), [[0.1, 0.1], [0.05, 0.05]]),
        ((None, rate), [[0.5, 0.1], [0.5, 0.05]]),
        ((rate, lambda step: 1.0), [[0.1, 1.0], [0.05, 1.0]]),
    ],
)
def test_several_optimizers(functions, expected):
    rates = Rates()
    Estimator(two_optimizers).train(
        ENDLESS, [LRScheduleHook(*functions), rates], steps=2
    )
    assert rates.rates == expected


def test_as_many_functions_as_optimizers():
    with pytest.raises(ValueError, match="got 2 functions, but the model has 1 opt"):
        make().train(ENDLESS, [LRScheduleHook(rate, rate)])


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"lr": rate}, "FunctionLR"),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}, "StepLR"),
    ],
)
def test_two_masters_are_refused(params, kind):
    with pytest.raises(ValueError, match=f"that a {kind} of the model sets as well"):
        make(**params).train(ENDLESS, [LRScheduleHook(rate)])
