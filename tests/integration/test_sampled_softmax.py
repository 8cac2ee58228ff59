# SPDX-License-Identifier: Apache-2.0
"""A thousand classes, learned by an Estimator that samples the softmax."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.canned.dnn import dnn_model_fn
from skest.feature_columns import FeatureColumns, numeric_column
from skest.heads import SampledSoftmaxHead
from skest.inputs import ArrayDataset
from skest.optimizers import make_optimizer
from tests._models import assert_same_checkpoint

N_CLASSES, WIDTH = 1000, 16
NAMES = [f"item {i}" for i in range(N_CLASSES)]
HEAD = SampledSoftmaxHead(N_CLASSES, 60, label_vocabulary=NAMES)


def rows(n: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Points around one centre for every class."""
    centers = np.random.default_rng(0).normal(size=(N_CLASSES, WIDTH))
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, N_CLASSES, n)
    x = centers[ids] + 0.3 * rng.normal(size=(n, WIDTH))
    return {"x": x.astype(np.float32)}, np.array(NAMES)[ids]


def user_model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
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


def estimator(model_fn: Any, model_dir: Any = None, seed: int = 0) -> Estimator:
    return Estimator(model_fn, model_dir, RunConfig(random_seed=seed, device="cpu"))


def batches(start: int, stop: int) -> Any:
    """Input function of the batches with these numbers."""
    return lambda: (rows(32, seed) for seed in range(start, stop))


def test_it_learns_a_thousand_classes() -> None:
    model_fn = MODELS["dnn"]
    x, y = rows(16_000, 1)
    data = ArrayDataset(x, y, batch_size=128, shuffle=True, num_epochs=None, seed=0)
    model = estimator(model_fn).train(lambda: data, steps=1000)
    held_out, labels = rows(1000, 2)

    def input_fn() -> ArrayDataset:
        return ArrayDataset(held_out, labels, batch_size=100)

    results = model.evaluate(input_fn)
    assert results["accuracy"] > 0.8
    assert results["accuracy/top_5"] > 0.95
    assert results["average_loss"] < 1.5
    (predicted,) = model.predict(
        lambda: [{"x": held_out["x"]}],
        predict_keys=["top_k_classes", "top_k_probabilities"],
        yield_single_examples=False,
    )
    hits = (predicted["top_k_classes"] == labels[:, None]).any(1)
    assert hits.mean() == pytest.approx(results["accuracy/top_5"])
    assert (np.diff(predicted["top_k_probabilities"]) <= 0).all()


@each_model
def test_training_goes_on_as_if_it_had_not_stopped(
    model_fn: Any, tmp_path: Any
) -> None:
    whole = estimator(model_fn).train(batches(0, 8))
    estimator(model_fn, tmp_path).train(batches(0, 3))
    parts = estimator(model_fn, tmp_path).train(batches(3, 8))
    assert_same_checkpoint(whole.checkpoint, parts.checkpoint)


@each_model
def test_a_step_changes_few_rows(model_fn: Any) -> None:
    model = estimator(model_fn).train(batches(0, 1))
    (name,) = (
        name
        for name in model.get_variable_names()
        if name.endswith("weight")
        and model.get_variable_value(name).shape[0] == N_CLASSES
    )
    before = model.get_variable_value(name)
    after = model.train(batches(1, 2)).get_variable_value(name)
    changed = (before != after).any(axis=1).sum()
    assert 0 < changed <= 32 + HEAD.num_sampled
