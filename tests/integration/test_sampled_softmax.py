# SPDX-License-Identifier: Apache-2.0
"""A thousand classes, learned by an Estimator that samples the softmax."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from skest import Estimator, RunConfig
from skest.canned.dnn import dnn_model_fn
from skest.feature_columns import FeatureColumns, numeric_column
from skest.heads import SampledSoftmaxHead
from skest.optimizers import make_optimizer
from tests._models import assert_same_checkpoint

N_CLASSES, WIDTH = 1000, 16
NAMES = [f"item {i}" for i in range(N_CLASSES)]
HEAD = SampledSoftmaxHead(N_CLASSES, 60, label_vocabulary=NAMES)


def rows(n, seed):
    """Points around one centre for every class."""
    centers = np.random.default_rng(0).normal(size=(N_CLASSES, WIDTH))
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, N_CLASSES, n)
    x = centers[ids] + 0.3 * rng.normal(size=(n, WIDTH))
    return {"x": x.astype(np.float32)}, np.array(NAMES)[ids]


def user_model_fn(features, labels, mode):
    network = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), HEAD.output_layer(64))
    return HEAD.create_estimator_spec(
        features,
        mode,
        network,
        labels,
        optimizer=make_optimizer("adagrad", network.parameters(), 0.3),
        encode=lambda features: torch.from_numpy(features["x"]),
    )


MODELS = {
    "user": user_model_fn,
    "dnn": functools.partial(
        dnn_model_fn,
        head=HEAD,
        columns=FeatureColumns([numeric_column("x", shape=(WIDTH,))]),
        hidden_units=(64,),
        dropout=0.01,
        learning_rate=0.3,
    ),
}
each_model = pytest.mark.parametrize("model_fn", MODELS.values(), ids=MODELS.keys())


def estimator(model_fn, model_dir=None, seed=0):
    return Estimator(model_fn, model_dir, RunConfig(random_seed=seed, device="cpu"))


def batches(start, stop):
    """Input function of the batches with these numbers."""
    return lambda: (rows(32, seed) for seed in range(start, stop))


@each_model
def test_training_goes_on_as_if_it_had_not_stopped(model_fn, tmp_path):
    whole = estimator(model_fn).train(batches(0, 8))
    estimator(model_fn, tmp_path).train(batches(0, 3))
    parts = estimator(model_fn, tmp_path).train(batches(3, 8))
    assert_same_checkpoint(whole.checkpoint, parts.checkpoint)
