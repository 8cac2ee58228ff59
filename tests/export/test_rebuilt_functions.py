# SPDX-License-Identifier: Apache-2.0
"""Estimators with a function of the user's, made again from their exports with it."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import skest
from skest.exceptions import ArtifactError
from skest.export import to_estimator
from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    categorical_column_with_vocabulary_list,
    embedding_column,
    numeric_column,
)
from skest.heads import BinaryClassHead

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

ROWS = 30
NUMBERS = np.random.default_rng(0).normal(size=(ROWS, 3))
TABLE = pd.DataFrame({"a": NUMBERS[:, 0], "city": ["Rome", "Oslo", None] * 10})
NAMES = np.where(NUMBERS[:, 0] > 0, "yes", "no")
COLUMNS = [
    numeric_column("a"),
    embedding_column(categorical_column_with_vocabulary_list("city"), 2),
]


def with_head(features, labels, mode, params):
    """A model on an array or columns, for any target."""
    first, size = nn.Identity(), 3
    if "feature_columns" in params:
        first = DenseFeatures(params["feature_columns"])
        size = first.out_features
    head = params["head"]
    network = nn.Sequential(
        first,
        nn.Linear(size, params["units"]),
        nn.Tanh(),
        nn.Linear(params["units"], 1),
    )
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return head.create_estimator_spec(features, mode, network, labels, optimizer)


def of_class(estimator_class, columns=None):
    return estimator_class(
        with_head,
        params={"units": 4},
        feature_columns=columns,
        max_iter=2,
        random_state=0,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "X", "y"),
    [
        (of_class(skest.ModelFnClassifier), NUMBERS, NAMES),
        (of_class(skest.ModelFnClassifier, COLUMNS), TABLE, NAMES),
        (of_class(skest.ModelFnRegressor), NUMBERS, NUMBERS[:, 1]),
    ],
    ids=["classes", "columns", "numbers"],
)
def test_estimators_of_scikit_learn(tmp_path, model, X, y):
    model.fit(X, y)
    version = model.export(tmp_path)
    manifest = json.loads((version / "manifest.json").read_text())
    assert "not_rebuilt" not in manifest["model"]
    again = to_estimator(tmp_path, model_fn=with_head)
    assert type(again) is type(model) and again.params == {"units": 4}
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    again.partial_fit(X, y)
    assert again.n_steps_ > model.n_steps_
    assert to_estimator(again.export(tmp_path), model_fn=with_head).score(X, y) < 2


def core_model_fn(features, labels, mode, params):
    columns = params["columns"]
    network = nn.Sequential(DenseFeatures(columns), nn.Linear(3, params["units"]))
    network = nn.Sequential(network, nn.Tanh(), nn.Linear(params["units"], 1))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    return BinaryClassHead().create_estimator_spec(
        features, mode, network, labels, optimizer, encode=columns.encode
    )


def batch():
    labels = (NUMBERS[:, 0] > 0).astype(np.int64)
    return {"a": NUMBERS[:, 0], "city": TABLE["city"].to_numpy(object)}, labels


def predictions(estimator):
    (found,) = estimator.predict(lambda: [batch()[0]], yield_single_examples=False)
    return found["probabilities"]


def trained():
    params = {"columns": FeatureColumns(COLUMNS).fit(TABLE), "units": 4}
    config = skest.RunConfig(random_seed=3)
    return skest.Estimator(core_model_fn, params=params, config=config).train(
        lambda: [batch()] * 5
    )


def test_the_core_estimator(tmp_path):
    estimator = trained()
    estimator.export(tmp_path)
    again = to_estimator(tmp_path, model_fn=core_model_fn)
    assert isinstance(again, skest.Estimator)
    assert again.params["units"] == 4 and again.config.random_seed == 3
    assert again.model_dir is None and again.checkpoint.global_step == 5
    np.testing.assert_array_equal(predictions(again), predictions(estimator))
    loss = again.evaluate(lambda: [batch()])["loss"]
    again.train(lambda: [batch()] * 20, max_steps=15)
    assert again.checkpoint.global_step == 15
    assert again.evaluate(lambda: [batch()])["loss"] < loss
    assert again.export(tmp_path).name > min(p.name for p in tmp_path.iterdir())


def test_hyperparameters_that_are_no_data(tmp_path):
    def model_fn(features, labels, mode, params):
        network = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        return BinaryClassHead().create_estimator_spec(
            features, mode, network, labels, optimizer
        )

    features = NUMBERS.astype(np.float32)
    estimator = skest.Estimator(model_fn, params={"net": {"act": torch.relu}})
    estimator.train(lambda: [(features, batch()[1])]).export(tmp_path)
    with pytest.raises(ArtifactError, match=r"params.net.act is a builtin_function"):
        to_estimator(tmp_path, model_fn=model_fn)


def without_params(features, labels, mode):
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_fn", "error", "match"),
    [
        (None, ValueError, "exported from Estimator, whose model function is code"),
        (3, TypeError, "'model_fn' must be a function; got int"),
        (lambda x: x, ValueError, "model_fn has the argument"),
        (without_params, ValueError, "does not take the argument 'params'"),
    ],
    ids=["none", "no_function", "others", "without_params"],
)
def test_wrong_functions(tmp_path, model_fn, error, match):
    trained().export(tmp_path)
    with pytest.raises(error, match=match):
        to_estimator(tmp_path, model_fn=model_fn)


def test_other_networks_are_refused(tmp_path):
    def other(features, labels, mode, params):
        params["units"] = 5
        return core_model_fn(features, labels, mode, params)

    trained().export(tmp_path)
    again = to_estimator(tmp_path, model_fn=other)
    with pytest.raises(ValueError, match="checkpoint"):
        predictions(again)


def test_estimators_without_a_function_take_none(tmp_path):
    model = skest.LinearClassifier(max_iter=1).fit(NUMBERS, NAMES)
    model.export(tmp_path)
    with pytest.raises(ValueError, match="LinearClassifier has no 'model_fn'"):
        to_estimator(tmp_path, model_fn=with_head)
    assert to_estimator(tmp_path).predict(NUMBERS).tolist() == list(
        model.predict(NUMBERS)
    )
