# SPDX-License-Identifier: Apache-2.0
"""Losses of the user's that read raw features."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from skest import DNNEstimator, Estimator, RunConfig
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.heads import RegressionHead
from skest.inputs import ArrayDataset
from tests._models import Recorder


def scaled_error(labels, logits, features):
    return (labels - logits).abs() * features["scale"]


LABELS = [0.0, 0.0, 0.0]
LOGITS = torch.tensor([[1.0], [2.0], [3.0]])
SCALE = np.array([1.0, 10.0, 100.0])


def head(**options):
    return RegressionHead(loss_fn=scaled_error, **options)


# Raw features


def test_what_the_function_gets():
    given = {}

    def loss_fn(labels, logits, features):
        given.update(features)
        return (labels - logits).abs()

    features = {
        "number": np.array([1, 2, 3]),
        "gaps": np.array([1.0, np.nan, 3.0]),
        "flag": np.array([True, False, True]),
        "vector": np.arange(6.0).reshape(3, 2),
        "pairs": pd.Series([[1, 2], [3, 4], [5, 6]]),
        "ragged": pd.Series([[1], [], [1, 2]]),
        "city": np.array(["a", "b", "c"]),
        "part": {"of a network": torch.zeros(3)},
        "day": np.array(["2020-01-01"] * 3, dtype="M8[D]"),
    }
    logits = LOGITS.double()
    RegressionHead(loss_fn=loss_fn).loss(LABELS, logits, features)
    assert {key: tuple(value.shape) for key, value in given.items()} == {
        "number": (3, 1),
        "gaps": (3, 1),
        "flag": (3, 1),
        "vector": (3, 2),
        "pairs": (3, 2),
    }
    assert all(value.dtype == torch.float64 for value in given.values())
    assert given["gaps"].isnan().ravel().tolist() == [False, True, False]


def test_a_missing_feature():
    for features, listed in [
        (None, "are none"),
        ({"scales": SCALE}, "are 'scales'"),
        ({"a": SCALE, "scale": np.array(["x", "y", "z"])}, "are 'a'"),
    ]:
        match = (
            f"'loss_fn' of RegressionHead asks for the feature 'scale'.* {listed}\\."
        )
        with pytest.raises(ValueError, match=match):
            head().loss(LABELS, LOGITS, features)


# In a run


RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {"scale": RNG.uniform(10, 1000, 60), "city": RNG.choice(["a", "b"], 60)}
)
TARGET = RNG.normal(size=60)
CITY = fc.indicator_column(
    fc.categorical_column_with_vocabulary_list("city", ["a", "b"])
)
DEEP = fc.FeatureColumns([fc.numeric_column("scale", normalizer="standard"), CITY])
MODEL_FNS = {
    "dnn": partial(dnn_model_fn, columns=DEEP.fit(TABLE), hidden_units=[4]),
    "combined": partial(
        dnn_linear_combined_model_fn,
        linear_columns=fc.FeatureColumns(
            [fc.numeric_column("scale", normalizer=np.log)]
        ),
        dnn_columns=DEEP.fit(TABLE),
        dnn_hidden_units=[4],
    ),
}


@pytest.mark.parametrize(("name", "in_batches"), [("dnn", True), ("combined", False)])
def test_model_functions_give_raw_features(name, in_batches):
    """The scale itself, though the network gets it standardised."""

    def loss_fn(labels, logits, features):
        # Nothing but the feature, so that the loss is known.
        return features["scale"] + 0 * logits

    def data():
        table = ArrayDataset(TABLE, TARGET, batch_size=20)
        return list(table) if in_batches else table

    estimator = Estimator(
        partial(MODEL_FNS[name], head=RegressionHead(loss_fn=loss_fn)),
        config=RunConfig(random_seed=0),
    )
    recorder = Recorder()
    estimator.train(data, hooks=[recorder])
    assert recorder.losses[0] == pytest.approx(TABLE["scale"][:20].mean(), rel=1e-6)
    results = estimator.evaluate(data)
    assert results["loss"] == pytest.approx(TABLE["scale"].mean(), rel=1e-6)
    assert results["average_loss"] == pytest.approx(TABLE["scale"].mean(), rel=1e-6)


def test_fit_on_a_frame():
    def loss_fn(labels, logits, features):
        return (labels - logits).abs() + features["scale"]

    own = RegressionHead(loss_fn=loss_fn)
    weight = np.arange(60.0)
    model = DNNEstimator(own, (4,), max_iter=2, random_state=0)
    model.fit(TABLE, TARGET, sample_weight=weight)
    errors = np.abs(TARGET - model.predict(TABLE)) + TABLE["scale"]
    results = model.evaluate(TABLE, TARGET, sample_weight=weight)
    expected = np.average(errors, weights=weight)
    assert results["average_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("X", "name"), [(RNG.normal(size=(60, 2)), "x"), (TABLE[["scale"]], "scale")]
)
def test_fit_on_numbers_only(X, name):
    """An array is one column, `x`; a frame of numbers has its names."""

    def loss_fn(labels, logits, features):
        return features[name][:, :1] + 0 * logits

    model = DNNEstimator(RegressionHead(loss_fn=loss_fn), (4,), max_iter=1)
    results = model.fit(X, TARGET).evaluate(X, TARGET)
    assert results["average_loss"] == pytest.approx(
        np.asarray(X)[:, 0].mean(), rel=1e-5
    )
