# SPDX-License-Identifier: Apache-2.0
import dataclasses
import functools
import logging

import numpy as np
import pytest
import torch
from torch import nn

from skest import Estimator, RunConfig
from skest.execution import GraphStep, make_step
from skest.execution.choice import reason_to_stay_eager
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
from skest.networks import CELL_TYPES, RNN
from tests.execution._steps import batches, make_spec, mean_square, mlp


def known_spec(network=None, **changes):
    loss = RegressionHead().compute_loss
    return make_spec(network or mlp(), **{"loss": loss, **changes})


class Own(nn.Linear):
    pass


def own_loss(labels, logits, features=None):
    return (labels - logits).abs()


class OwnHead(RegressionHead):
    pass


def regression(**options):
    return RegressionHead(**options).compute_loss


def two_heads(**options):
    heads = [BinaryClassHead(name="a"), RegressionHead(name="b", **options)]
    return MultiHead(heads).compute_loss


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, None),
        ({"loss": regression(loss_fn=functools.partial(quantile_error))}, None),
        ({"loss": two_heads()}, None),
        ({"network": nn.Sequential(Own(3, 1))}, "Own"),
        ({"loss": own_loss}, "own_loss"),
        ({"loss": lambda y, z, x: z.mean()}, "<lambda>"),
        ({"loss": regression(loss_fn=own_loss)}, "own_loss"),
        ({"loss": OwnHead().compute_loss}, "OwnHead"),
        ({"loss": two_heads(loss_fn=own_loss)}, "own_loss"),
    ],
)
def test_only_known_code_is_recorded_unasked(changes, name):
    reason = reason_to_stay_eager(known_spec(**changes))
    if name is None:
        assert reason is None
    else:
        assert f"{name}' is not known to compute with tensors only" in reason


def test_hooks_of_modules_and_parameters_and_own_optimizers_count():
    class OwnOptimizer(torch.optim.SGD):
        pass

    network = mlp()
    spec = known_spec(optimizer=OwnOptimizer(network.parameters(), lr=0.1))
    assert "OwnOptimizer" in reason_to_stay_eager(spec)

    spec = known_spec()
    spec.network[0].register_forward_hook(lambda module, inputs, output: None)
    assert "<lambda>" in reason_to_stay_eager(spec)

    spec = known_spec()
    spec.network[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    assert reason_to_stay_eager(spec) == "a parameter has hooks for its gradient"


def own_activation(x):
    return torch.relu(x)


def test_functions_that_modules_hold_count():
    def reason(activation):
        layer = nn.TransformerEncoderLayer(4, 2, 8, activation=activation)
        return reason_to_stay_eager(known_spec(nn.Sequential(layer, nn.Linear(4, 1))))

    for activation in ("relu", nn.functional.gelu, torch.tanh, nn.Tanh()):
        assert reason(activation) is None
    assert "own_activation" in reason(own_activation)
    assert "own_activation" in reason(functools.partial(own_activation))

    spec = known_spec()
    spec.network[1].same = spec.network[1].forward
    assert reason_to_stay_eager(spec) is None
    spec.network[1].forward = own_activation
    assert "own_activation" in reason_to_stay_eager(spec)


@pytest.mark.parametrize("cell_type", CELL_TYPES)
def test_recurrent_layers_are_known(cell_type):
    sequence = SequenceFeatures([sequence_numeric_column("s")])
    rnn = RNN(sequence, None, (3,), 1, cell_type=cell_type)
    assert reason_to_stay_eager(known_spec(rnn)) is None


@pytest.mark.parametrize("kind", ["gradient", "module", "forward"])
def test_own_code_that_comes_later_is_called_in_every_step(kind):
    called = []

    def note(*args):
        called.append(None)

    def register(network):
        if kind == "gradient":
            network[0].weight.register_hook(note)
        elif kind == "module":
            network[1].register_forward_hook(note)
        else:
            network[1].forward = lambda x: (note(), x.relu())[1]

    spec = known_spec()
    step = make_step(
        "auto", spec, [type("Own", (Hook,), {})()], 1000, is_input_known=True
    )
    for i, batch in enumerate(batches(12)):
        if i == 6:
            register(spec.network)
        step(*batch)
    assert len(called) == 6
    assert step.n_replayed == 3


@pytest.mark.parametrize(
    ("execution", "n_steps", "n_replayed"),
    [
        ("eager", 1000, 0),
        ("graph", 5, 30 - 3),
        ("auto", 1000, 30 - 3),
        ("auto", None, 30 - 22),
        ("auto", 59, 0),
    ],
)
def test_when_steps_are_replayed(execution, n_steps, n_replayed):
    step = make_step(
        execution, known_spec(), [NanLossHook()], n_steps, is_input_known=True
    )
    for batch in batches(30):
        step(*batch)
    assert getattr(step, "n_replayed", 0) == n_replayed


def test_unknown_code_is_recorded_if_asked_for(caplog):
    caplog.set_level(logging.INFO, "skest")
    spec = make_spec(mlp())
    assert not isinstance(
        make_step("auto", spec, [], 1000, is_input_known=True), GraphStep
    )
    assert isinstance(
        make_step("graph", spec, [], 1000, is_input_known=True), GraphStep
    )
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert (
        "'mean_square' is not known to compute with tensors only; execution='graph' "
        "records it"
    ) in record.message


def test_what_is_asked_for_and_impossible_is_a_warning(caplog):
    def branching(labels, logits, features):
        return logits.mean() if logits.mean() > 0 else logits.sum()

    step = make_step(
        "graph", make_spec(mlp(), loss=branching), [], None, is_input_known=True
    )
    for batch in batches(5):
        step(*batch)
    (record,) = caplog.records
    assert record.levelname == "WARNING"


class OwnSGD(torch.optim.SGD):
    pass


def with_another_method():
    hook = StepCounterHook(every_steps=100)
    hook.after_step = StepCounterHook(every_steps=1).after_step
    return hook


@pytest.mark.parametrize(
    ("hooks", "changes", "is_input_known", "is_watched"),
    [
        ([NanLossHook(), CheckpointSaverHook()], {}, True, False),
        ([], {}, False, True),
        ([type("Own", (Hook,), {})()], {}, True, True),
        (
            [CheckpointSaverHook(listeners=[type("L", (CheckpointListener,), {})()])],
            {},
            True,
            True,
        ),
        ([with_another_method()], {}, True, True),
        ([], {"loss": mean_square}, True, False),
        ([], {"optimizer": OwnSGD}, True, True),
    ],
)
def test_the_model_is_watched_where_somebody_may_change_it(
    hooks, changes, is_input_known, is_watched
):
    network = mlp()
    if "optimizer" in changes:
        changes = {"optimizer": changes["optimizer"](network.parameters(), lr=0.1)}
    spec = known_spec(network, **changes)
    step = make_step("graph", spec, hooks, None, is_input_known=is_input_known)
    for i, batch in enumerate(batches(8)):
        if i == 5:
            spec.network[1] = nn.Tanh()
        step(*batch)
    assert step.n_replayed == (3 if is_watched else 5)


@pytest.mark.parametrize("changes", [{}, {"loss": mean_square}])
def test_own_code_in_steps_with_watched_gradients_counts(monkeypatch, changes):
    monkeypatch.setattr(NanLossHook, "watches_gradients", True)
    monkeypatch.setattr(NanLossHook, "wants_gradients", lambda hook, run: False)
    spec = known_spec(**changes)
    step = make_step("graph", spec, [NanLossHook()], None, is_input_known=True)
    for i, batch in enumerate(batches(8)):
        if i == 5:
            spec.network[1] = nn.Tanh()
        step(*batch)
    assert step.n_replayed == (3 if changes else 5)


def test_what_an_input_changes_between_steps_counts():
    def train(execution):
        made = []

        def model_fn(features, labels, mode):
            spec = known_spec(mlp(nn.Dropout(0.1)))
            made.append(spec)
            return dataclasses.replace(spec, mode=mode)

        def input_fn():
            for i, batch in enumerate(batches(80)):
                for spec in made:
                    spec.optimizers[0].param_groups[0]["lr"] = 0.1 / (1 + i // 30)
                    spec.network[2].p = 0.1 if i < 50 else 0.5
                yield batch

        config = RunConfig(random_seed=0, execution=execution)
        estimator = Estimator(model_fn, config=config)
        estimator.train(input_fn)
        return [
            estimator.get_variable_value(name)
            for name in estimator.get_variable_names()
            if name != "global_step"
        ]

    expected = train("eager")
    for execution in ("auto", "graph"):
        for ours, theirs in zip(train(execution), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
