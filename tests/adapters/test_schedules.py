# SPDX-License-Identifier: Apache-2.0
"""Lists of optimizers, schedules and clipping as parameters of the estimators."""

from functools import partial

import numpy as np
import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from skest import BaselineClassifier, DNNClassifier, MultiHeadEstimator, RNNClassifier
from skest.hooks import Hook
from tests.adapters.conftest import make


class Rates(Hook):
    """Notes the learning rates before every step."""

    def __init__(self):
        self.rates = []

    def before_step(self, run):
        groups = [g for o in run.spec.optimizers for g in o.param_groups]
        self.rates.append([group["lr"] for group in groups])

    def __deepcopy__(self, memo):
        return self


def rate_parameters(estimator_class):
    names = estimator_class().get_params()
    return [n for n in names if n.endswith("learning_rate")]


def test_a_scheduler_of_torch_goes_on_after_a_pause(estimator_class, blobs):
    X, y = blobs
    hook = Rates()
    model = make(
        estimator_class,
        max_iter=2,
        batch_size=60,
        lr_scheduler=partial(StepLR, step_size=3, gamma=0.5),
        hooks=[hook],
        warm_start=True,
    )
    model.fit(X, y).fit(X, y)
    first = hook.rates[0]
    halves = [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    np.testing.assert_allclose(hook.rates, [[r * h for r in first] for h in halves])


@pytest.mark.parametrize(
    "estimator", [BaselineClassifier(), MultiHeadEstimator((4,)), RNNClassifier(4)]
)
def test_clipping(estimator, blobs):
    X, y = blobs
    largest = []

    class Norms(Hook):
        def after_step(self, run, loss):
            trained = [p for p in run.network.parameters() if p.requires_grad]
            grads = [p.grad.norm() ** 2 for p in trained]
            largest.append(float(sum(grads) ** 0.5))

        def __deepcopy__(self, memo):
            return self

    estimator.set_params(clip_norm=0.01, hooks=[Norms()], max_iter=3).fit(X, y)
    assert max(largest) <= 0.01 * (1 + 1e-5)


def test_a_list_of_optimizers(blobs):
    X, y = blobs
    model = make(DNNClassifier, optimizer=[("*.bias", "sgd"), ("*", "adam")])
    model.fit(X, y)
    names = model.estimator_.get_variable_names()
    assert any("hidden_0.weight" in n and "exp_avg" in n for n in names)
    assert not any("hidden_0.bias" in n and "exp_avg" in n for n in names)


WRONG = {
    "lr_scheduler": (ReduceLROnPlateau, "ReduceLROnPlateau"),
    "learning_rate": (lambda step: float("nan"), "step 0"),
    "optimizer": ([("nothing.*", "adam"), ("*", "sgd")], "nothing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters(name, blobs):
    value, message = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make(DNNClassifier, **{name: value}).fit(*blobs)
