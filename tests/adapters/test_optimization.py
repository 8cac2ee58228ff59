# SPDX-License-Identifier: Apache-2.0
"""Optimizers, schedules and clipping in the four model functions."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from skest import Estimator, RunConfig
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.canned.linear import baseline_model_fn, linear_model_fn
from skest.heads import RegressionHead
from skest.hooks import Hook

FEATURES = {"x": np.linspace(-1, 1, 8), "k": np.arange(8) % 3}
LABELS = np.arange(8.0) * 10
K = fc.categorical_column_with_identity("k", 3)


def wide():
    return fc.FeatureColumns([fc.numeric_column("x"), K])


def deep():
    return fc.FeatureColumns([fc.numeric_column("x"), fc.embedding_column(K, 2)])


def functions(rate, **options):
    """The four model functions with one optimizer and rate for everything."""
    options["head"] = RegressionHead()
    parts = {"optimizer": "sgd", "learning_rate": rate}
    both = {f"{part}_{k}": v for k, v in parts.items() for part in ("dnn", "linear")}
    both |= {"linear_columns": wide(), "dnn_columns": deep(), "dnn_hidden_units": (4,)}
    return {
        "dnn": partial(
            dnn_model_fn, columns=deep(), hidden_units=(4,), **parts, **options
        ),
        "linear": partial(linear_model_fn, columns=wide(), **parts, **options),
        "combined": partial(dnn_linear_combined_model_fn, **both, **options),
        "baseline": partial(baseline_model_fn, **parts, **options),
    }


KINDS = functions(0.1)


class Watch(Hook):
    """Notes the rates of every step, and the length of the way that it went."""

    def __init__(self):
        self.rates, self.ways = [], []

    def __deepcopy__(self, memo):
        return self

    def before_step(self, run):
        self.optimizers = run.spec.optimizers
        self.rates.append([o.param_groups[0]["lr"] for o in self.optimizers])
        self.before = [p.detach().clone() for p in run.network.parameters()]

    def after_step(self, run, loss):
        pairs = zip(run.network.parameters(), self.before, strict=True)
        moves = [(now.detach() - before).ravel() for now, before in pairs]
        self.ways.append(torch.cat(moves).norm().item())


def train(model_fn, n_steps=3):
    estimator = Estimator(model_fn, config=RunConfig(random_seed=0))
    watch = Watch()
    estimator.train(lambda: [(FEATURES, LABELS)] * n_steps, hooks=[watch])
    return watch


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_may_be_a_function_of_the_step(kind):
    n_optimizers = 2 if kind == "combined" else 1
    halving = partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)
    for given in (
        functions(lambda step: 0.1 * 0.5**step),
        functions(0.1, lr_scheduler=halving),
    ):
        watch = train(given[kind])
        assert watch.rates == [[rate] * n_optimizers for rate in (0.1, 0.05, 0.025)]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_clipped(kind):
    assert train(functions(0.01)[kind]).ways[0] > 0.1
    ways = train(functions(0.01, clip_norm=0.5)[kind]).ways
    assert ways == pytest.approx([0.01 * 0.5] * 3, rel=1e-3)


def test_wrong_settings_are_refused():
    cosine = partial(lr_scheduler.CosineAnnealingLR, T_max=3)
    for rate, options, message in [
        (lambda step: 0.1, {"lr_scheduler": cosine}, "CosineAnnealingLR .* it as well"),
        (0.1, {"clip_norm": 0}, "'clip_norm' .*greater than 0; got 0"),
        (
            *(0.1, {"lr_scheduler": lr_scheduler.ReduceLROnPlateau}),
            "cannot be ReduceLROnPlateau",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            train(functions(rate, **options)["combined"])
