# SPDX-License-Identifier: Apache-2.0
"""Training with schedules that stops and goes on is training that did not stop."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from skest import Estimator, EstimatorSpec, RunConfig
from skest.optimizers import make_optimizers
from skest.optimizers.schedules import make_lr_schedulers
from tests._models import Rates, assert_same_checkpoint

N_STEPS, STOP = 10, 4


def decay(step):
    return 0.1 * 0.96 ** (step / 3)


def rising(optimizer):
    return lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)


SCHEDULERS = {
    "step": partial(lr_scheduler.StepLR, step_size=3, gamma=0.5),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=9),
    "restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "one_cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=12),
    "cyclic": partial(
        lr_scheduler.CyclicLR,
        base_lr=0.01,
        max_lr=0.1,
        step_size_up=3,
        cycle_momentum=False,
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [rising(o), lr_scheduler.CosineAnnealingLR(o, 9)], milestones=[3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [rising(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}
PAIRS = [("*table", "adagrad"), ("*", "adam")]
OPTIMIZERS = {"adam": "adam", "ftrl": "ftrl", "pairs": PAIRS}


class Network(nn.Module):
    """An embedding in a row table, and a dense layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 3))
        self.table.is_row_table = True
        self.dense = nn.Linear(3, 1)

    def forward(self, ids):
        return self.dense(nn.functional.embedding(ids, self.table, sparse=True))


def model_fn(features, labels, mode, params):
    network = Network()
    optimizers = make_optimizers(
        params["optimizer"], network.named_parameters(), params["learning_rate"]
    )
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda labels, logits, features: (logits[:, 0] - labels).square().mean(),
        optimizer=optimizers,
        lr_scheduler=make_lr_schedulers(params.get("lr_scheduler"), optimizers),
        clip_norm=params.get("clip_norm"),
    )


def batch(step):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 6, (8,), generator=generator)
    return ids, torch.sin(ids.float())


def make(model_dir=None, optimizer="adam", learning_rate=0.1, **params):
    params |= {"optimizer": optimizer, "learning_rate": learning_rate}
    config = RunConfig(model_dir=model_dir, random_seed=0)
    return Estimator(model_fn, config=config, params=params)


def train(estimator, start, stop, **options):
    return estimator.train(lambda: map(batch, range(start, stop)), **options)


def assert_goes_on(tmp_path, with_dir, **params):
    whole = train(make(**params), 0, N_STEPS)
    parts = train(make(tmp_path if with_dir else None, **params), 0, STOP)
    if with_dir:
        parts = make(tmp_path, **params)
    train(parts, STOP, N_STEPS)
    assert_same_checkpoint(parts.checkpoint, whole.checkpoint)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*zip(SCHEDULERS, itertools.cycle(OPTIMIZERS.values()), strict=False)],
    ids=list(SCHEDULERS),
)
def test_schedulers_go_on(tmp_path, name, optimizer):
    scheduler = SCHEDULERS[name]
    if name == "one_cycle" and optimizer != "adam":  # others have no momentum to cycle
        scheduler = partial(scheduler, cycle_momentum=False)
    # The directory is the harder case: from JSON and safetensors, in another object.
    with_dir = name not in ("step", "sequential")
    assert_goes_on(tmp_path, with_dir, optimizer=optimizer, lr_scheduler=scheduler)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_functions_go_on(tmp_path, optimizer):
    with_dir = optimizer != "ftrl"
    params = {"optimizer": optimizer, "learning_rate": decay, "clip_norm": 0.5}
    assert_goes_on(tmp_path, with_dir, **params)


def rates(estimator, start, stop):
    hook = Rates()
    train(estimator, start, stop, hooks=[hook])
    return hook.rates


def make_from(estimator, **params):
    """An estimator with other settings at the checkpoint of this one."""
    other = make(**params)
    other.checkpoint = estimator.checkpoint
    return other


def test_another_function_replaces_that_of_the_checkpoint():
    estimator = train(make(learning_rate=decay), 0, 3)
    other = make_from(estimator, learning_rate=lambda step: 0.01 * step)
    assert rates(other, 3, 5) == [[0.03], [0.04]]
    constant = make_from(other, learning_rate=0.2)
    assert rates(constant, 5, 7) == [[0.2], [0.2]]


def test_a_scheduler_of_another_kind_starts_anew():
    params = {"optimizer": "sgd", "learning_rate": 0.5}
    halving = partial(lr_scheduler.StepLR, step_size=2, gamma=0.5)
    estimator = train(make(**params, lr_scheduler=halving), 0, 3)
    going_on = make_from(estimator, **params, lr_scheduler=halving)
    assert rates(going_on, 3, 5) == [[0.25], [0.125]]
    other = partial(lr_scheduler.ExponentialLR, gamma=0.5)
    changed = make_from(estimator, **params, lr_scheduler=other)
    assert rates(changed, 3, 5) == [[0.5], [0.25]]
    chained = SCHEDULERS["chained"]
    changed = make_from(changed, **params, lr_scheduler=chained)
    assert rates(changed, 5, 7)[0] == pytest.approx([0.05])
    without = make_from(changed, **params)
    assert rates(without, 7, 9) == [[0.5], [0.5]]
    added = make_from(without, **params, lr_scheduler=other)
    assert rates(added, 9, 11) == [[0.5], [0.25]]
