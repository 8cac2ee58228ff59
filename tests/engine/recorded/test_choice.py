# SPDX-License-Identifier: Apache-2.0
"""Under "auto" a closed world is recorded; all else is eager, and the reason is told."""

import functools
import logging

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from skest.engine.recorded.choice import make_step
from skest.engine.recorded.step import GraphStep
from skest.feature_columns import SequenceFeatures, sequence_numeric_column
from skest.heads import BinaryClassHead, MultiHead, RegressionHead
from skest.hooks import (
    CheckpointListener,
    CheckpointSaverHook,
    Hook,
    NanLossHook,
    StepCounterHook,
)
from skest.losses import quantile_error
from skest.networks import RNN
from skest.optimizers import make_optimizer
from skest.optimizers.row_sparse import RowSparse
from tests.engine.recorded._steps import batches, make_spec, mlp, reported


def known_spec(network=None, **changes):
    loss = RegressionHead().compute_loss
    return make_spec(network or mlp(), **{"loss": loss, **changes})


def own(base, *args, **options):
    return type("Own", (base,), {})(*args, **options)


def own_function(*args):
    return args[0].abs()


def own_loss(labels, logits):
    return (labels - logits).abs()


def regression(loss_fn):
    return RegressionHead(loss_fn=loss_fn).compute_loss


def two_heads(**options):
    heads = [BinaryClassHead(name="a"), RegressionHead(name="b", **options)]
    return MultiHead(heads).compute_loss


def transformer(activation):
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=activation)
    return nn.Sequential(layer, nn.Linear(4, 1))


def recurrent(cell_type):
    sequence = SequenceFeatures([sequence_numeric_column("s")])
    return RNN(sequence, None, (3,), 1, cell_type=cell_type)


def with_scheduler(make):
    network = mlp()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return known_spec(network, optimizer=optimizer, lr_scheduler=make(optimizer))


def with_optimizer(make):
    network = mlp()
    return known_spec(network, optimizer=make(network.parameters()))


@pytest.mark.parametrize(
    "make",
    [
        known_spec,
        lambda: known_spec(loss=two_heads()),
        lambda: known_spec(loss=regression(functools.partial(quantile_error))),
        *[lambda a=a: known_spec(transformer(a)) for a in ("relu", torch.tanh)],
        lambda: known_spec(recurrent("gru")),
        lambda: with_scheduler(
            lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1.0)
        ),
        lambda: with_optimizer(lambda p: make_optimizer("adam", p, lambda step: 0.1)),
        lambda: with_optimizer(lambda p: RowSparse(torch.optim.Adagrad(p))),
    ],
)
def test_what_pytorch_and_skest_build_is_recorded(make):
    step = make_step("auto", make(), [], 1000)
    assert isinstance(step, GraphStep)


def hooked(register):
    spec = known_spec()
    register(spec)
    return spec


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: known_spec(nn.Sequential(own(nn.Linear, 3, 1))), "'Own'"),
        (lambda: known_spec(transformer(own_function)), "'own_function'"),
        (lambda: known_spec(loss=own_function), "'own_function'"),
        (lambda: known_spec(loss=regression(own_loss)), "'own_loss'"),
        (lambda: known_spec(loss=two_heads(loss_fn=own_loss)), "'own_loss'"),
        (
            lambda: known_spec(
                loss=functools.partial(
                    RegressionHead.compute_loss, RegressionHead(loss_fn=own_loss)
                )
            ),
            "'own_loss'",
        ),
        (lambda: with_optimizer(lambda p: own(torch.optim.SGD, p)), "'Own'"),
        (lambda: with_optimizer(lambda p: RowSparse(own(torch.optim.SGD, p))), "'Own'"),
        (
            lambda: with_scheduler(
                lambda o: own(torch.optim.lr_scheduler.StepLR, o, 2)
            ),
            "'Own'",
        ),
        (
            lambda: hooked(lambda s: setattr(s.network[0], "forward", own_function)),
            "'own_function'",
        ),
        (
            lambda: hooked(lambda s: s.network[0].register_forward_hook(own_function)),
            "'own_function'",
        ),
        (
            lambda: hooked(lambda s: s.network[0].weight.register_hook(own_function)),
            "a parameter has hooks",
        ),
        (
            lambda: hooked(lambda s: s.optimizer.register_step_pre_hook(own_function)),
            "SGD has hooks for its steps",
        ),
    ],
)
def test_other_code_is_recorded_on_request_only(make, name, caplog):
    caplog.set_level(logging.INFO, "skest")
    spec = make()
    assert not isinstance(make_step("auto", spec, [], 1000), GraphStep)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert name in record.message
    assert isinstance(make_step("graph", spec, [], 1000), GraphStep)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("register", "execution"),
    [
        (register_module_forward_hook, "graph"),
        (register_module_forward_hook, "auto"),
        (register_optimizer_step_post_hook, "auto"),
    ],
)
def test_hooks_of_everything_are_called(register, execution):
    handle = register(lambda *args: None)
    try:
        assert not isinstance(make_step(execution, known_spec(), [], 1000), GraphStep)
    finally:
        handle.remove()


def with_another_method():
    hook = StepCounterHook(every_steps=100)
    hook.after_step = own_function
    return hook


@pytest.mark.parametrize(
    "hook",
    [
        own(Hook),
        CheckpointSaverHook(listeners=[own(CheckpointListener)]),
        with_another_method(),
    ],
)
def test_other_hooks_may_change_anything(hook):
    assert not isinstance(make_step("auto", known_spec(), [hook], 1000), GraphStep)
    assert isinstance(make_step("graph", known_spec(), [hook], 1000), GraphStep)


def test_who_wants_all_gradients_gets_eager_steps():
    class Watching(Hook):
        def after_backward(self, run):
            pass

    with reported() as reports:
        step = make_step("graph", known_spec(), [Watching()], 1000)
    assert not isinstance(step, GraphStep)
    assert reports == ["a hook watches gradients."]


@pytest.mark.parametrize(
    ("execution", "n_steps", "n_replayed"),
    [
        ("eager", 1000, 0),
        ("graph", 5, 30 - 2),
        ("auto", 1000, 30 - 2),
        ("auto", None, 30 - 21),
        ("auto", 29, 0),
    ],
)
def test_when_steps_are_replayed(execution, n_steps, n_replayed):
    step = make_step(execution, known_spec(), [NanLossHook()], n_steps)
    for batch in batches(30):
        step(*batch)
    assert getattr(step, "n_replayed", 0) == n_replayed
