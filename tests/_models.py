# SPDX-License-Identifier: Apache-2.0
"""Small models and inputs that the tests of the core share."""

import numpy as np
import torch
from torch import nn

from skest import EstimatorSpec
from skest.hooks import Hook
from skest.inputs import ArrayDataset
from skest.networks import DNN
from skest.optimizers import make_optimizer

N_ROWS, N_FEATURES = 20, 3


def table(n_rows=N_ROWS, dtype=np.float32):
    """Features of shape (n_rows, 3), and labels that are linear in them."""
    x = np.random.default_rng(0).normal(size=(n_rows, N_FEATURES)).astype(dtype)
    return x, x @ np.array([1.0, -2.0, 0.5], dtype=dtype)


def table_fn(batch_size=4, *, labels=True, n_rows=N_ROWS, **options):
    """Return an input function over `table`."""
    x, y = table(n_rows)

    def input_fn():
        return ArrayDataset(x, y if labels else None, batch_size=batch_size, **options)

    return input_fn


def batches(n_batches=5, batch_size=4):
    """Return a list of (features, labels)."""
    x, y = table(n_batches * batch_size)
    return list(zip(np.split(x, n_batches), np.split(y, n_batches), strict=True))


def linear():
    return nn.Linear(N_FEATURES, 1)


def skest_dropout():
    return DNN(nn.Linear(N_FEATURES, 4), (5,), 1, dropout=0.4)


def torch_dropout():
    return nn.Sequential(
        nn.Linear(N_FEATURES, 5), nn.ReLU(), nn.Dropout(0.4), nn.Linear(5, 1)
    )


def batch_norm():
    return DNN(nn.Linear(N_FEATURES, 4), (5,), 1, batch_norm=True)


NETWORKS = {
    "linear": linear,
    "skest_dropout": skest_dropout,
    "torch_dropout": torch_dropout,
    "batch_norm": batch_norm,
}


def squared_loss(labels, logits, features):
    return ((logits[:, 0] - labels) ** 2).mean()


class Mean:
    """The simplest metric: the mean of the logits."""

    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, logits, labels):
        self.sum += logits.sum().item()
        self.count += len(logits)

    def compute(self):
        return self.sum / self.count


def model_fn(features, labels, mode, params):
    """A regression; `params` may name "network", "optimizer", "lr" and "scheduler"."""
    network = NETWORKS[params.get("network", "linear")]()
    optimizer = make_optimizer(
        params.get("optimizer", "sgd"), network.parameters(), params.get("lr", 0.05)
    )
    scheduler = params.get("scheduler")
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_loss,
        predictions=lambda z: {"y": z[:, 0], "twice": 2 * z},
        optimizer=optimizer,
        eval_metrics={"mean": Mean()},
        lr_scheduler=scheduler(optimizer) if scheduler else None,
    )


class Recorder(Hook):
    """Notes the calls that it gets, and the loss of every step."""

    def __init__(self):
        self.calls, self.losses, self.steps = [], [], []

    def begin(self, run):
        self.calls.append("begin")

    def before_step(self, run):
        self.calls.append("before_step")

    def after_step(self, run, loss):
        self.calls.append("after_step")
        self.losses.append(None if loss is None else loss.item())
        self.steps.append(run.global_step)

    def end(self, run):
        self.calls.append("end")


class Rates(Hook):
    """Notes the rates that the steps are taken with."""

    def __init__(self):
        self.rates = []

    def before_step(self, run):
        groups = [group for o in run.spec.optimizers for group in o.param_groups]
        self.rates.append([group["lr"] for group in groups])


class At(Hook):
    """Calls a function of the run when a global step has been taken."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def after_step(self, run, loss):
        if run.global_step == self.step:
            self.function(run)


class FakeClock:
    """A clock that is set by hand."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def raising(error):
    """Return a function of anything that raises `error`."""

    def function(*args, **kwargs):
        raise error

    return function


def assert_same_checkpoint(a, b):
    """Assert that two checkpoints are equal, bit for bit."""
    assert a.global_step == b.global_step
    assert a.scalars == b.scalars
    for mine, yours in ((a.variables, b.variables), (a.optimizer, b.optimizer)):
        assert mine.keys() == yours.keys()
        for name in mine:
            assert mine[name].dtype == yours[name].dtype
            assert torch.equal(mine[name], yours[name]), name


def single(estimator_class, **params):
    """An estimator that trains one network once: no members, nothing held out."""
    own = {"n_members": 1, "early_stopping": False, "random_state": 0} | params
    names = estimator_class().get_params()
    return estimator_class(**{k: v for k, v in own.items() if k in names})
