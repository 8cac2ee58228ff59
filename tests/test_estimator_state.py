# SPDX-License-Identifier: Apache-2.0
"""What an Estimator keeps, repeats, and leaves as it was."""

import gc
import itertools
import pickle
import weakref

import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from tests._models import (
    NETWORKS,
    At,
    Recorder,
    assert_same_checkpoint,
    batches,
    model_fn,
    raising,
    squared_loss,
    table_fn,
)
from tests.adapters.test_side_effects import state_of_process

SHUFFLED = table_fn(shuffle=True, num_epochs=None, seed=1)


def make(model_dir=None, seed=0, model_fn=model_fn, **params):
    config = RunConfig(model_dir=model_dir, random_seed=seed)
    return Estimator(model_fn, config=config, params=params)


def in_order(n_batches=10):
    """Return an input function whose batches go on from call to call."""
    stream = iter(batches(n_batches))
    return lambda: stream


# The same again


@pytest.mark.parametrize(
    ("network", "with_dir"), [*zip(NETWORKS, (False, True, False, True), strict=True)]
)
def test_a_seed_repeats_training_bit_for_bit(tmp_path, network, with_dir):
    results = []
    for i in range(2):
        torch.manual_seed(i)
        torch.rand(i)
        estimator = make(tmp_path / str(i) if with_dir else None, network=network)
        results.append(estimator.train(SHUFFLED, steps=8).checkpoint)
    assert_same_checkpoint(*results)


def halving(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7], gamma=0.5)


@pytest.mark.parametrize("with_dir", [False, True])
def test_an_estimator_can_be_pickled(tmp_path, with_dir):
    estimator = make(tmp_path if with_dir else None, network="torch_dropout")
    estimator.train(table_fn())
    copied = pickle.loads(pickle.dumps(estimator))
    assert copied.config == estimator.config
    assert copied.params == estimator.params
    assert copied.evaluate(table_fn()) == estimator.evaluate(table_fn())
    if not with_dir:
        assert_same_checkpoint(
            copied.train(SHUFFLED, steps=3).checkpoint,
            estimator.train(SHUFFLED, steps=3).checkpoint,
        )


# What belongs to the caller


def test_predictions_do_not_depend_on_the_callers_gradient_mode():
    for no_grad in [torch.no_grad, torch.enable_grad]:
        estimator = make().train(table_fn())
        with no_grad():
            rows = list(estimator.predict(table_fn()))
            results = estimator.evaluate(table_fn())
        assert len(rows) == 20
        assert results == estimator.evaluate(table_fn())


# Letting go


@pytest.fixture
def no_collector():
    """Switch the collector off: only counted references may keep a network."""
    # PyTorch makes circles of references when it first needs such a module.
    make(scheduler=halving, optimizer="adam").train(table_fn())
    gc.disable()
    yield
    gc.enable()


def watched():
    """Return a model function and weak references to what it built."""
    references = []

    def watched_model_fn(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        parts = [spec.network, *spec.network.parameters(), *spec.optimizers]
        references.extend(weakref.ref(part) for part in parts)
        return spec

    return watched_model_fn, references


def alive(references):
    assert references
    return [r() for r in references if r() is not None]


@pytest.mark.parametrize(
    ("network", "with_dir", "params"),
    [
        ("linear", False, {"scheduler": halving, "optimizer": "adam"}),
        ("torch_dropout", False, {}),
        ("batch_norm", True, {"scheduler": halving, "optimizer": "adam"}),
    ],
)
def test_networks_are_let_go(no_collector, tmp_path, network, with_dir, params):
    function, references = watched()
    estimator = make(
        tmp_path if with_dir else None, model_fn=function, network=network, **params
    )
    estimator.train(table_fn())
    assert alive(references) == []
    estimator.evaluate(table_fn())
    assert alive(references) == []
    predictions = estimator.predict(table_fn())
    next(predictions)
    assert alive(references) != []
    list(predictions)
    assert alive(references) == []
    abandoned = estimator.predict(table_fn())
    next(abandoned)
    del abandoned
    assert alive(references) == []


# Interruptions


def interrupted_input(error, after):
    def input_fn():
        yield from itertools.islice(table_fn()(), after)
        raise error

    return input_fn


@pytest.mark.parametrize(
    ("error", "source", "with_dir"),
    [
        (KeyboardInterrupt(), "hook", True),
        (KeyboardInterrupt(), "input", False),
        (SystemExit(3), "input", True),
        (OSError("broken"), "hook", False),
    ],
)
def test_an_interruption_saves_the_last_state(tmp_path, error, source, with_dir):
    arguments = {
        "hook": {"input_fn": table_fn(), "hooks": [At(3, raising(error))]},
        "input": {"input_fn": interrupted_input(error, 3)},
    }[source]
    expected = make(network="torch_dropout").train(table_fn(), steps=3).checkpoint
    estimator = make(tmp_path if with_dir else None, network="torch_dropout")
    recorder = Recorder()
    with pytest.raises(type(error)) as caught:
        hooks = [recorder, *arguments.pop("hooks", ())]
        estimator.train(**arguments, hooks=hooks)
    assert caught.value is error
    assert "end" not in recorder.calls
    assert_same_checkpoint(estimator.checkpoint, expected)
    assert estimator.train(table_fn(), steps=2).checkpoint.global_step == 5


def test_an_interruption_before_the_first_step_saves_nothing(tmp_path):
    estimator = make(tmp_path)
    with pytest.raises(OSError, match="broken"):
        estimator.train(interrupted_input(OSError("broken"), 0))
    assert estimator.checkpoint is None


# Modules of the user


class Noise(nn.Module):
    """A module of the user's that draws from torch's global generator."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(3, 1)

    def forward(self, x):
        return self.generator(x) + (torch.randn(len(x), 1) if self.training else 0)


def test_modules_of_the_user_draw_from_the_run():
    def noisy_model_fn(features, labels, mode):
        network = Noise()
        return EstimatorSpec(
            mode,
            network=network,
            loss=squared_loss,
            predictions=lambda z: {"z": z},
            optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        )

    before = state_of_process()
    whole = make(model_fn=noisy_model_fn).train(in_order())
    assert state_of_process() == before
    input_fn = in_order()
    parts = make(model_fn=noisy_model_fn).train(input_fn, steps=4).train(input_fn)
    assert_same_checkpoint(parts.checkpoint, whole.checkpoint)
