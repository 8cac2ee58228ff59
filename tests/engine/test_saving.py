# SPDX-License-Identifier: Apache-2.0
"""A training that ends inside a step, or whose variables are NaN."""

import threading

import pytest
import torch

from skest import Estimator, EstimatorSpec, RunConfig
from skest.exceptions import NanLossDuringTrainingError
from skest.inputs import Pipeline
from tests._models import (
    At,
    assert_same_checkpoint,
    batches,
    raising,
    squared_loss,
    table_fn,
)

N_STEPS, FAILS = 40, 15
INF = float("inf")


class Failing(torch.autograd.Function):
    """Raises an error in one of its backward passes."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Failing.calls += 1
        if Failing.calls == FAILS:
            raise RuntimeError("broken")
        return gradient


class Net(torch.nn.Module):
    """Changes a buffer and draws numbers before it may fail."""

    def __init__(self, fails_in):
        super().__init__()
        self.norm, self.last = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)
        self.dropout = torch.nn.Dropout(0.5)
        self.fails_in, self.calls = fails_in, 0
        Failing.calls = 0

    def forward(self, x):
        x = self.dropout(self.norm(x))
        self.calls += self.training
        if self.fails_in == "forward" and self.training and self.calls == FAILS:
            raise RuntimeError("broken")
        return (
            Failing.apply(self.last(x)) if self.fails_in == "backward" else self.last(x)
        )


class SGD(torch.optim.SGD):
    """Raises what Ctrl-C raises, in place of one of its steps."""

    fails, calls = False, 0

    def step(self, closure=None):
        self.calls += 1
        if self.fails and self.calls == FAILS:
            raise KeyboardInterrupt
        return super().step(closure)


def model_fn(features, labels, mode, params):
    network = Net(params["fails_in"])
    first = torch.optim.Adam(network.norm.parameters(), 0.05)
    second = SGD(network.last.parameters(), 0.05)
    second.fails = params["fails_in"] == "optimizer"
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_loss,
        predictions=lambda z: {"y": z},
        optimizer=[first, second],
    )


def make(model_dir=None, fails_in=None):
    config = RunConfig(
        model_dir,
        random_seed=0,
        save_checkpoints_steps=10,
        save_summary_steps=0,  # the graph of the network would be one more forward pass
        execution="eager",
    )
    return Estimator(model_fn, config=config, params={"fails_in": fails_in})


def endless():
    return table_fn(num_epochs=None, shuffle=True, seed=1)()


@pytest.mark.parametrize(
    ("fails_in", "with_dir"),
    [("forward", True), ("backward", False), ("optimizer", True)],
)
def test_half_a_step_is_not_saved(tmp_path, caplog, fails_in, with_dir):
    estimator = make(tmp_path if with_dir else None, fails_in)
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        estimator.train(endless, max_steps=N_STEPS)
    assert f"inside a step behind step {FAILS - 1}" in caplog.text
    if not with_dir:
        assert "nothing is saved; there is no checkpoint" in caplog.text
        assert estimator.checkpoint is None
        return
    assert "nothing is saved; the checkpoint of step 10 is still the" in caplog.text
    assert_same_checkpoint(
        estimator.checkpoint, make().train(endless, max_steps=10).checkpoint
    )
    resumed = make(tmp_path).train(endless, max_steps=N_STEPS)
    whole = make().train(endless, max_steps=N_STEPS)
    assert_same_checkpoint(resumed.checkpoint, whole.checkpoint)


def test_ctrl_c_without_files_has_none_to_speak_of(caplog):
    with pytest.raises(KeyboardInterrupt):
        make(fails_in="optimizer").train(endless, max_steps=N_STEPS)
    assert not caplog.records


# Variables that are NaN


def root_model_fn(features, labels, mode, params):
    """Its gradient is NaN for features of zeros; its loss is not."""
    network = torch.nn.Linear(3, 1, bias=False)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: z.square().sum().sqrt(),
        optimizer=torch.optim.SGD(network.parameters(), 0.01),
    )


def with_a_batch_of(value, at):
    for i, (x, y) in enumerate(batches(30), start=1):
        yield (x * value if i == at else x), y


def rooted(model_dir, every=5):
    config = RunConfig(model_dir, random_seed=0, save_checkpoints_steps=every)
    return Estimator(root_model_fn, config=config)


def test_variables_that_are_nan_are_not_saved(tmp_path, caplog):
    at = 12
    estimator = rooted(tmp_path, every=at)
    with pytest.raises(
        NanLossDuringTrainingError,
        match=rf"variables 'weight' are NaN at step {at}, though its loss is a number: "
        ".*checkpoint of step 0 is still the latest.*a square root.*at 0",
    ):
        estimator.train(lambda: with_a_batch_of(0, at))
    assert "is lost" not in caplog.text
    assert estimator.checkpoint.global_step == 0
    assert estimator.stop_reason.startswith("NanLossDuringTrainingError: The variables")
    estimator.train(lambda: with_a_batch_of(1, at), max_steps=20)
    assert not estimator.checkpoint.variables["weight"].isnan().any()


class Constant(torch.nn.Module):
    """Has an infinite weight, and a buffer of NaN."""

    def __init__(self):
        super().__init__()
        self.infinite = torch.nn.Parameter(torch.tensor([INF, -INF]))
        self.level = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("unknown", torch.tensor(float("nan")))

    def forward(self, x):
        return self.level.expand(len(x), 1)


def test_variables_that_are_infinite_or_not_trained_are_saved():
    def model_fn(features, labels, mode):
        network = Constant()
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        return EstimatorSpec(
            mode, network=network, loss=squared_loss, optimizer=optimizer
        )

    checkpoint = Estimator(model_fn).train(table_fn()).checkpoint
    assert checkpoint.variables["infinite"].tolist() == [INF, -INF]
    assert checkpoint.variables["unknown"].isnan()


# Inputs


def test_inputs_are_closed_also_when_an_error_is_held():
    estimator = make().train(table_fn())
    pipeline = Pipeline(batches(100)).prefetch(4)
    hook = At(estimator.checkpoint.global_step, raising(OSError("broken")))
    errors = []
    for use in (estimator.evaluate, lambda *a, **k: list(estimator.predict(*a, **k))):
        try:
            use(lambda: pipeline, hooks=[hook])
        except OSError as error:
            errors.append(error)
    assert len(errors) == 2
    assert not [t for t in threading.enumerate() if t.name == "skest-prefetch"]
