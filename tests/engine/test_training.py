# SPDX-License-Identifier: Apache-2.0

import copy
import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_

from skest import Estimator, EstimatorSpec, ModeKeys, RunConfig
from skest.engine.loop import (
    Replica,
    clip_gradients,
    scalar_loss,
    train_loop,
    train_step,
)
from skest.hooks import Hook, Run
from tests._models import squared_loss


def make_spec(**changes):
    network = nn.Linear(2, 1)
    fields = {
        "network": network,
        "loss": squared_loss,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
    }
    return EstimatorSpec(ModeKeys.TRAIN, **{**fields, **changes})


def make_batches(n=3):
    return iter([(torch.ones(4, 2), torch.zeros(4))] * n)


def gradients_used(network, **fields):
    step = [torch.optim.SGD([p], lr=0.5) for p in (network.weight, network.bias)]
    spec = make_spec(network=network, **{"optimizer": step, **fields})
    before = [p.detach().clone() for p in network.parameters()]
    train_step(spec, *next(make_batches()))
    after = network.parameters()
    return [(b - a.detach()) / 0.5 for b, a in zip(before, after, strict=True)]


def test_gradients_that_no_optimizer_uses_do_not_count():
    network = nn.Linear(2, 1)
    nn.init.constant_(network.weight, 3.0)  # far from where the gradient vanishes
    optimizer = torch.optim.SGD([network.weight], lr=0.5)
    for _ in range(3):  # nobody resets the gradient of the bias: it grows
        weight, _ = gradients_used(network, optimizer=optimizer, clip_norm=1e-3)
        assert weight.norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_other_losses_are_refused():
    with pytest.raises(ValueError, match=r"one number; got a tensor of shape \(2,\)"):
        scalar_loss(torch.zeros(2))
    with pytest.raises(TypeError, match=r"'loss' .*must return a tensor; got float"):
        scalar_loss(1.0)
    spec = make_spec(loss=lambda labels, logits, features: logits[:, 0])
    with pytest.raises(ValueError, match=r"got a tensor of shape \(4,\)"):
        train_step(spec, *next(make_batches()))


def test_gradients_can_be_changed_between_backward_and_update():
    class Halving(Hook):
        def after_backward(self, run):
            features, _ = run.batch
            assert features.shape == (4, 2)
            for parameter in run.network.parameters():
                parameter.grad /= 2

    start = nn.Linear(2, 1)
    moved = []
    for hooks in ([], [Halving()]):
        network = copy.deepcopy(start)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.25)
        spec = make_spec(network=network, optimizer=optimizer)
        step = functools.partial(train_step, spec)
        train_loop(Run(spec, RunConfig()), make_batches(1), hooks, step, Replica())
        moved.append(network.weight.detach() - start.weight.detach())
    torch.testing.assert_close(moved[1], moved[0] / 2)


def test_a_batch_can_be_replaced_before_its_step():
    class Zeroing(Hook):
        def before_step(self, run):
            features, labels = run.batch
            run.batch = torch.zeros_like(features), labels + 1

    spec = make_spec()
    start = copy.deepcopy(spec.network)
    step = functools.partial(train_step, spec)
    train_loop(Run(spec, RunConfig()), make_batches(1), [Zeroing()], step, Replica())
    assert torch.equal(spec.network.weight, start.weight)
    assert not torch.equal(spec.network.bias, start.bias)


class Interrupted(Run):
    """A run that Ctrl-C comes into just before its `at`-th change."""

    at, n_changes = math.inf, 0

    def __setattr__(self, name, value):
        super().__setattr__("n_changes", self.n_changes + 1)
        if self.n_changes >= self.at:
            raise KeyboardInterrupt
        super().__setattr__(name, value)


def test_ctrl_c_between_two_lines_leaves_no_step_that_is_half_noted():
    """It is inside a step, of which nothing is saved then, or all of it is noted."""
    n_changes, n_inside = Interrupted(make_spec(), RunConfig()).n_changes, 0
    while True:
        run = Interrupted(make_spec(), RunConfig())
        run.at, losses = n_changes, [None]

        def step(features, labels, losses=losses):
            losses.append(torch.tensor(0.5))
            return losses[-1]

        try:
            batches = iter(3 * [(torch.ones(4, 2), torch.zeros(4))])
            train_loop(run, batches, [], step, Replica())
        except KeyboardInterrupt:
            n_inside += run.in_step
        else:
            break
        n_taken = len(losses) - 1
        assert run.in_step or (run.global_step, run.n_taken) == (n_taken, n_taken)
        assert run.in_step or run.loss is losses[n_taken]
        n_changes += 1
    assert n_inside


ROWS, DIM = 5, 2


def dense(values):
    parameter = torch.nn.Parameter(torch.zeros(len(values), dtype=torch.float64))
    parameter.grad = torch.tensor(values, dtype=torch.float64)
    return parameter


def table(ids, values):
    """A row table with a gradient of one row per id, duplicates included."""
    parameter = torch.nn.Parameter(torch.zeros(ROWS, DIM, dtype=torch.float64))
    parameter.grad = torch.sparse_coo_tensor(
        torch.tensor([ids], dtype=torch.int64),
        torch.tensor(values, dtype=torch.float64).reshape(len(ids), DIM),
        (ROWS, DIM),
        check_invariants=True,
    )
    return parameter


FLOATS = st.floats(-1e3, 1e3)
DENSE = st.lists(FLOATS, min_size=1, max_size=4).map(dense)
TABLE = st.lists(st.integers(0, ROWS - 1), max_size=6).flatmap(
    lambda ids: st.lists(FLOATS, min_size=len(ids) * DIM, max_size=len(ids) * DIM).map(
        lambda values: table(ids, values)
    )
)


@given(st.lists(DENSE | TABLE, min_size=1, max_size=4), st.floats(1e-2, 1e4))
def test_equals_clipping_the_dense_gradients(parameters, max_norm):
    twins = [torch.nn.Parameter(torch.zeros_like(p)) for p in parameters]
    for twin, parameter in zip(twins, parameters, strict=True):
        twin.grad = parameter.grad.to_dense().clone()
    expected = clip_grad_norm_(twins, max_norm)
    torch.testing.assert_close(clip_gradients(parameters, max_norm), expected)
    for twin, parameter in zip(twins, parameters, strict=True):
        torch.testing.assert_close(parameter.grad.to_dense(), twin.grad)


@pytest.mark.parametrize("name", [None, "x"])
def test_an_error_of_the_first_step_tells_what_it_was_given(name):
    x = np.ones((4, 3))
    batches = [(x if name is None else {name: x}, np.zeros(4))]
    shapes = r"\(4, 3\) torch.float32.*, labels '\(4,\) torch.float32'"
    with pytest.raises((RuntimeError, TypeError), match=shapes) as refused:
        Estimator(lambda features, labels, mode: make_spec()).train(lambda: batches)
    assert name is None or "{'x': " in refused.value.__notes__[0]


def test_a_broken_gradient_is_not_hidden():
    for broken in [math.nan, math.inf]:
        for make in [dense, lambda values: table([2], values)]:
            parameter = make([broken, 1.0])
            norm = clip_gradients([dense([1.0]), parameter], 1.0)
            assert not norm.isfinite()
            assert parameter.grad.to_dense().isnan().any()


def test_optimizers_of_other_networks_are_refused_before_the_first_step():
    other = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), 0.1)

    def model_fn(features, labels, mode):
        network = torch.nn.Linear(2, 1)
        own = torch.optim.Adagrad(network.parameters())
        return EstimatorSpec(
            mode,
            network=network,
            loss=lambda labels, logits, features: logits.mean(),
            optimizer=[own, other],
        )

    estimator = Estimator(model_fn)
    message = r"SGD holds a parameter of shape \(1, 3\) that is not in the 'network'"
    with pytest.raises(ValueError, match=message):
        estimator.train(lambda: [(np.ones((4, 2), np.float32), np.ones(4))])
    assert estimator.checkpoint is None


def test_a_state_that_no_checkpoint_holds_is_refused_before_the_first_step():
    class Counting(torch.nn.Linear):
        def get_extra_state(self):
            return {"calls": 1}

        def set_extra_state(self, state):
            pass

    def model_fn(features, labels, mode):
        network = Counting(2, 1)
        return make_spec(
            network=network, optimizer=torch.optim.SGD(network.parameters(), 0.1)
        )

    with pytest.raises(TypeError, match="'_extra_state', a dict, and checkpoints hold"):
        Estimator(model_fn).train(lambda: [(np.ones((4, 2), np.float32), np.ones(4))])
