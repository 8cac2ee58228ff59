# SPDX-License-Identifier: Apache-2.0
"""`ModelFnClassifier`, `ModelFnRegressor`: model functions of the user's."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skest import EstimatorSpec, ModeKeys, ModelFnClassifier, ModelFnRegressor
from skest import feature_columns as fc
from skest.feature_columns import DenseFeatures
from skest.heads import BinaryClassHead, MultiClassHead, RegressionHead
from skest.metrics import Mean
from skest.optimizers import make_optimizer
from tests.adapters import _model_fns as model_fns

OPTIONS = {"max_iter": 30, "random_state": 0, "tol": 0.0}


def make(model_fn, **options):
    """A small classifier."""
    return ModelFnClassifier(model_fn, **OPTIONS | options)


def make_regressor(model_fn, **options):
    """A small regressor."""
    return ModelFnRegressor(model_fn, **OPTIONS | options)


@pytest.fixture
def pairs():
    """100 rows of two numbers, and two classes."""
    X = np.random.default_rng(0).normal(size=(100, 2))
    return X, np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


@pytest.mark.parametrize("model_fn", [model_fns.with_head, model_fns.classes])
def test_classes(model_fn, blobs):
    X, y = blobs
    names = np.array(["no", "maybe", "yes"])[y]
    model = make(model_fn).fit(X, names)
    assert model.classes_.tolist() == ["maybe", "no", "yes"]
    assert model.score(X, names) > 0.9
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(
        model.predict(X), model.classes_[probabilities.argmax(axis=1)]
    )
    assert model.decision_function(X).shape == (120, 3)
    np.testing.assert_allclose(
        model.predict_log_proba(X), np.log(probabilities), atol=1e-8
    )


@pytest.mark.parametrize("model_fn", [model_fns.with_head, model_fns.classes])
def test_several_labels(model_fn, blobs):
    X, y = blobs
    labels = np.stack([y > 0, y > 1, y == 0], axis=1).astype(int)
    model = make(model_fn, max_iter=60).fit(X, labels)
    assert model.score(X, labels) > 0.8
    assert model.predict_proba(X).shape == model.decision_function(X).shape == (120, 3)


@pytest.mark.parametrize(
    ("model_fn", "n_outputs"), [(model_fns.with_head, 2), (model_fns.numbers, None)]
)
def test_numbers(model_fn, blobs, n_outputs):
    X, _ = blobs
    y = X[:, 0] if n_outputs is None else X[:, :n_outputs]
    model = make_regressor(model_fn, max_iter=100).fit(X, y)
    assert model.predict(X).shape == y.shape
    assert model.score(X, y) > 0.9
    assert not hasattr(model, "predict_proba")


def test_model_fn_gets_params(blobs):
    X, y = blobs
    seen = {}

    def recording(features, labels, mode, params, config):
        seen[mode] = (features, labels, params, config)
        return model_fns.with_head(features, labels, mode, params)

    model = make(recording, params={"lr": 0.1}, batch_size=50).fit(X, y)
    features, labels, params, config = seen[ModeKeys.TRAIN]
    assert isinstance(features, np.ndarray)
    assert features.shape == (50, 4)
    assert labels.tolist() == y[:50].tolist()
    assert params.keys() == {"lr", "head", "n_classes"}
    assert params["n_classes"] == 3
    assert isinstance(params["head"], MultiClassHead)
    assert config.random_seed is not None
    model.predict(X)
    assert seen[ModeKeys.PREDICT][1] is None
    seen.clear()
    make_regressor(recording).fit(X, X[:, :2])
    _, labels, params, _ = seen[ModeKeys.TRAIN]
    assert params["n_outputs"] == 2
    assert isinstance(params["head"], RegressionHead)
    np.testing.assert_array_equal(labels, X[:, :2])


@pytest.mark.parametrize("weight", [None, 2.0])
def test_weights_are_no_features(pairs, weight):
    X, y = pairs
    weight = None if weight is None else np.full(len(y), weight)
    frame = pd.DataFrame(X, columns=["a", "b"])
    seen = []

    class Seeing(model_fns.Mlp):
        def forward(self, features):
            seen.append(features)
            return super().forward(features)

    def recording(features, labels, mode, params):
        seen.append(features)
        spec = model_fns.classes(features, labels, mode, params)
        network = Seeing(features, 4, 2)
        sgd = torch.optim.SGD(network.parameters(), lr=0.1)
        return replace(spec, network=network, optimizer=sgd)

    make(recording, max_iter=1).fit(X, y, weight).predict(X)
    assert {type(features) for features in seen} == {np.ndarray, torch.Tensor}
    assert {features.shape[1] for features in seen} == {2}
    seen.clear()
    make(recording, max_iter=1).fit(frame, y, weight).predict(frame)
    assert {tuple(features) for features in seen} == {("a", "b")}


@pytest.mark.parametrize(
    "model", [make(model_fns.with_head), make_regressor(model_fns.numbers)]
)
def test_a_weight_of_two_is_two_rows(model, pairs):
    X, y = pairs
    y = (y == "yes").astype(float)
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    many = np.repeat(np.arange(len(y)), weight.astype(int))
    model.set_params(batch_size=1000, max_iter=20)
    weighted = clone(model).fit(X, y, weight)
    repeated = clone(model).fit(X[many], y[many])
    np.testing.assert_allclose(
        weighted.predict(X), repeated.predict(X), rtol=1e-7, atol=1e-12
    )
    assert weighted.loss_ == pytest.approx(repeated.loss_)
    plain = clone(model).fit(X, y)
    assert abs(plain.loss_ - weighted.loss_) > 1e-4
    loss = weighted.evaluate(X, y, weight)["loss"]
    assert loss == pytest.approx(weighted.evaluate(X[many], y[many])["loss"])


@pytest.mark.parametrize("weight", [None, 2.0])
def test_weights_go_with_regularization_losses(pairs, weight):
    def model_fn(features, labels, mode, params):
        network = nn.Linear(features.shape[1], 1)
        return params["head"].create_estimator_spec(
            features,
            mode,
            network,
            labels,
            torch.optim.SGD(network.parameters(), lr=0.1),
            regularization_losses=[lambda: 5 * network.weight.square().sum()],
        )

    X, y = pairs
    weights = None if weight is None else np.full(len(y), weight)
    model = make(model_fn, max_iter=30).fit(X, y, sample_weight=weights)
    assert np.abs(model.estimator_.get_variable_value("weight")).max() < 0.1
    found = model.evaluate(X, y)
    assert found["loss"] == pytest.approx(
        found["average_loss"] + found["regularization_loss"]
    )


def test_a_loss_of_one_number_cannot_be_weighed(pairs):
    X, y = pairs

    def mean_loss(features, labels, mode, params):
        spec = model_fns.classes(features, labels, mode, params)
        return replace(spec, loss=lambda y, z, x: spec.loss(y, z, x).mean())

    assert make(mean_loss).fit(X, y).score(X, y) > 0.9
    with pytest.raises(ValueError, match='one number for a batch.*reduction="none"'):
        make(mean_loss).fit(X, y, np.ones(len(y)))
    with pytest.raises(ValueError, match="'sample_weight' and 'class_weight'"):
        make(mean_loss, class_weight="balanced").fit(X, y)


def test_losses_that_were_broadcast_are_refused(pairs):
    X, _ = pairs

    def broadcasting(features, labels, mode, params):
        spec = model_fns.numbers(features, labels, mode, params)
        return replace(spec, loss=lambda y, z, x: (y - z) ** 2)  # (n,) and (n, 1)

    with pytest.raises(ValueError, match=r"got \(100, 100\). Have .* logits the shape"):
        make_regressor(broadcasting).fit(X, X[:, 0])


def test_weights_come_in_one_way_only(pairs):
    X, y = pairs
    table = {"a": X[:, 0], "w": np.ones(len(y))}

    def own_head(features, labels, mode):
        head = BinaryClassHead(weight_column="w")
        network = model_fns.Mlp(features, 4, 1)
        sgd = torch.optim.SGD(network.parameters(), lr=0.1)
        return head.create_estimator_spec(features, mode, network, labels, sgd)

    make(own_head, max_iter=1).fit(table, y)
    with pytest.raises(ValueError, match="reads weights from a column. Give weights"):
        make(own_head, max_iter=1).fit(table, y, np.ones(len(y)))


# Parameters


def test_params_are_parameters():
    given = {"lr": 0.1, "units": 4}
    model = make(model_fns.classes, params=given)
    assert model.get_params()["params__lr"] == 0.1
    assert "params__lr" not in model.get_params(deep=False)
    model.set_params(params__lr=0.2, params__new=1, max_iter=3)
    assert model.params == {"lr": 0.2, "units": 4, "new": 1}
    assert model.max_iter == 3
    assert given == {"lr": 0.1, "units": 4}
    assert ModelFnClassifier().set_params(params__lr=0.3).params == {"lr": 0.3}
    assert model.set_params(params={"units": 8}, params__lr=1.0).params == {
        "units": 8,
        "lr": 1.0,
    }
    with pytest.raises(ValueError, match="Invalid parameter 'lr'"):
        model.set_params(lr=0.1)


def test_a_search_reaches_params(pairs):
    X, y = pairs
    model = make(model_fns.classes, params={"units": 4}, max_iter=15)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {
            "modelfnclassifier__params__lr": [1e-5, 0.1],
            "modelfnclassifier__params__units": [2, 8],
        },
        cv=2,
    ).fit(X, y)
    assert search.best_params_["modelfnclassifier__params__lr"] == 0.1
    assert model.params == {"units": 4}
    units = search.best_params_["modelfnclassifier__params__units"]
    weights = search.best_estimator_[-1].estimator_.get_variable_value("0.weight")
    assert weights.shape == (units, 2)


# Features


def dense(features, labels, mode, params):
    network = nn.Sequential(
        columns := DenseFeatures(params["feature_columns"]),
        nn.Linear(columns.out_features, 1),
    )
    adagrad = make_optimizer("adagrad", network.parameters(), 0.5)
    return params["head"].create_estimator_spec(
        features, mode, network, labels=labels, optimizer=adagrad
    )


def test_feature_columns(table):
    X, y = table
    city = fc.categorical_column_with_vocabulary_list("city")
    columns = fc.FeatureColumns(
        [
            ("age", fc.numeric_column("age", normalizer="standard")),
            ("city", fc.embedding_column(city, dimension=2)),
        ]
    )
    model = make(dense, feature_columns=columns, max_iter=20, batch_size=20)
    assert model.fit(X, y).score(X, y) > 0.6
    names = model.estimator_.get_variable_names()
    assert "0.city_embedding_weights" in names
    assert model.feature_columns_.get_feature_names_out().tolist()[0] == "age"
    search = GridSearchCV(model, {"feature_columns__city__dimension": [1, 3]}, cv=2)
    best = search.fit(X, y).best_estimator_
    shape = best.estimator_.get_variable_value("0.city_embedding_weights").shape
    assert shape == (3, search.best_params_["feature_columns__city__dimension"])


def test_the_network_computes_in_the_type_of_an_array(pairs):
    X, y = pairs
    columns = [fc.numeric_column(0), fc.numeric_column(1)]
    for options in ({"feature_columns": columns}, {}):
        model_fn = dense if options else model_fns.with_head
        model = make(model_fn, **options).fit(X, y, sample_weight=np.ones(len(y)))
        assert model.predict_proba(X).dtype == np.float64
        variables = model.estimator_.checkpoint.variables.values()
        assert {value.dtype for value in variables} == {torch.float64}
        single = clone(model).set_params(dtype="float32").fit(X, y)
        assert single.predict_proba(X).dtype == np.float32


def test_raw_columns_are_for_encode(table):
    X, y = table

    def encode(features):
        cities = features["city"].to_numpy().astype(str)[:, None] == ["Bern", "Oslo"]
        age = features["age"].to_numpy(dtype=np.float32)[:, None] / 80
        return {"x": torch.from_numpy(np.hstack([cities, age]).astype(np.float32))}

    class Network(model_fns.Mlp):
        def forward(self, features):
            return super().forward(features["x"])

    def model_fn(features, labels, mode, params):
        network = Network(torch.zeros(1, 3), 8, 2)
        return EstimatorSpec(
            mode,
            network=network,
            encode=encode,
            loss=model_fns.class_losses,
            predictions=lambda z: {"logits": z},
            optimizer=torch.optim.Adam(network.parameters(), lr=0.05),
            eval_metrics={"age": (Mean(), lambda y, z, x: (x["x"][:, 2],))},
        )

    model = make(model_fn, max_iter=100).fit(X, y, sample_weight=np.ones(len(y)))
    assert model.score(X, y) > 0.9
    results = model.evaluate(X, y, np.ones(len(y)))
    assert results["age"] == pytest.approx((X["age"] / 80).mean())


# Errors


def test_errors_before_training(pairs, table):
    X, y = pairs
    with pytest.raises(ValueError, match="'model_fn' of ModelFnClassifier .* be given"):
        ModelFnClassifier().fit(X, y)
    with pytest.raises(ValueError, match="'model_fn' .* of ModelFnRegressor must"):
        ModelFnRegressor(3).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="'params' are given, but model_fn does not"):
        ModelFnClassifier(lambda features, mode: None, params={"lr": 1}).fit(X, y)
    with pytest.raises(ValueError, match="contains NaN"):
        make(model_fns.classes).fit(np.where(X > 1, np.nan, X), y)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        make(model_fns.classes).fit(csr_array(X), y)

    def encoding(features, labels, mode, params):
        return replace(dense(features, labels, mode, params), encode=lambda x: x)

    with pytest.raises(ValueError, match="'feature_columns' encode the features, but"):
        make(encoding, feature_columns=[fc.numeric_column("age")]).fit(*table)


def predicting(form):
    """A model function with other predictions."""

    def model_fn(features, labels, mode, params):
        spec = model_fns.with_head(features, labels, mode, params)
        return replace(spec, predictions=form)

    return model_fn


def test_predictions_follow_from_one_another(pairs):
    X, y = pairs
    expected = make(predicting(lambda z: {"logits": z}), max_iter=2).fit(X, y)
    for form in [
        lambda z: {"logits": z[:, 0]},
        lambda z: {"logits": torch.cat([z * 0 + 5, z + 5], 1)},
        lambda z: {"logistic": z.sigmoid()},
        lambda z: {"probabilities": z[:, 0].sigmoid()},
        lambda z: {"probabilities": torch.cat([(-z).sigmoid(), z.sigmoid()], 1)},
        lambda z: {"logits": z, "class_ids": (z > 0).long()[:, 0]},
    ]:
        model = make(predicting(form), max_iter=2).fit(X, y)
        for method in ("predict_proba", "decision_function"):
            found = getattr(model, method)(X)
            np.testing.assert_allclose(found, getattr(expected, method)(X), rtol=1e-6)
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    labels = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 0] > 1], 1).astype(int)
    found, given = (
        make(predicting(form), max_iter=2).fit(X, labels)
        for form in (lambda z: {"logits": z}, lambda z: {"probabilities": z.sigmoid()})
    )
    np.testing.assert_allclose(found.predict_proba(X), given.predict_proba(X))
    np.testing.assert_allclose(
        found.decision_function(X), given.decision_function(X), rtol=1e-6
    )


def test_predictions_that_say_nothing_about_y(pairs):
    X, y = pairs
    model = make(predicting(lambda z: {"price": z}), max_iter=1).fit(X, y)
    for method, key in [
        ("predict", "class_ids"),
        ("predict_proba", "probabilities"),
        ("decision_function", "logits"),
    ]:
        with pytest.raises(ValueError, match=f"'{key}' cannot be told .* are 'price'"):
            getattr(model, method)(X)
    for form, error, message in [
        (lambda z: {}, ValueError, "'predictions' cannot be told .* which are none"),
        (lambda z: {"predictions": z[:, :, None]}, ValueError, r"\(n_samples, 1\)"),
        (lambda z: z, TypeError, "must return a dictionary; got Tensor"),
    ]:
        numbers = make_regressor(predicting(form), max_iter=1)
        with pytest.raises(error, match=message):
            numbers.fit(X, X[:, 0]).predict(X)
    wide = predicting(lambda z: {"logits": z.expand(-1, 3)})
    shapes = r"shape \(n_samples, 1\) or \(n_samples, 2\).*got \(100, 3\)"
    with pytest.raises(ValueError, match=shapes):
        make(wide, max_iter=1).fit(X, y).predict(X)


def test_early_stopping_needs_predictions_in_training(pairs):
    X, y = pairs

    def silent(features, labels, mode, params):
        spec = model_fns.classes(features, labels, mode, params)
        return replace(spec, predictions=None) if mode == ModeKeys.TRAIN else spec

    assert make(silent).fit(X, y).score(X, y) > 0.9
    with pytest.raises(ValueError, match="model_fn returns no 'predictions' in mode"):
        make(silent, early_stopping=True).fit(X, y)


def rows_of_three():
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    return X, np.sin(2 * X[:, 0])


def regression(make_network, make_optimizer=torch.optim.Adam, **spec):
    def model_fn(features, labels, mode, params):
        network = make_network()
        optimizer = make_optimizer(network.parameters(), 0.01)
        return params["head"].create_estimator_spec(
            features, mode, network, labels, optimizer, **spec
        )

    return model_fn


class RandomFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.directions = torch.randn(3, 64)  # no buffer, and not in a checkpoint
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out((x @ self.directions).sin())


@pytest.mark.parametrize("seed", [None, 0])
def test_what_a_network_draws_beside_its_variables_is_drawn_again(seed):
    X, y = rows_of_three()
    model = ModelFnRegressor(
        regression(RandomFeatures), max_iter=60, random_state=seed, tol=0.0
    )
    assert model.fit(X, y).score(X, y) > 0.5


def test_a_model_fn_may_change_its_input_in_place():
    X, y = rows_of_three()
    given = X.copy()

    def model_fn(features, labels, mode, params):
        features -= features.mean(0)
        network = nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(3, 1))
        return regression(lambda: network)(features, labels, mode, params)

    model = make_regressor(model_fn, max_iter=2).fit(X, y)
    model.predict(X)
    model.score(X, y)
    np.testing.assert_array_equal(X, given)


def test_a_network_made_outside_is_refused():
    X, y = rows_of_three()
    network = nn.Linear(3, 1)
    with pytest.raises(ValueError, match="network of an earlier call.*inside model_fn"):
        make_regressor(regression(lambda: network)).fit(X, y).predict(X)


def test_momentum_of_rows_is_saved():
    X = pd.DataFrame({"s": np.random.default_rng(0).choice(list("abcd"), 300)})
    y = (X["s"] == "a").astype(float)
    words = fc.categorical_column_with_vocabulary_list("s")

    def model_fn(features, labels, mode, params):
        table = DenseFeatures(params["feature_columns"])
        momentum = partial(torch.optim.SGD, momentum=0.9)
        network = nn.Sequential(table, nn.Linear(4, 1))
        return regression(lambda: network, momentum)(features, labels, mode, params)

    model = make_regressor(model_fn, feature_columns=[fc.embedding_column(words, 4)])
    assert model.fit(X, y).score(X, y) > 0.9
    assert model.partial_fit(X, y).score(X, y) > 0.9


def test_logarithms_are_no_probabilities(pairs):
    def model_fn(features, labels, mode, params):
        network = nn.Linear(2, 2, dtype=torch.float64)
        return EstimatorSpec(
            mode,
            network=network,
            loss=lambda y, z, x: nn.functional.cross_entropy(z, y, reduction="none"),
            predictions=lambda z: {"probabilities": z.log_softmax(1)},
            optimizer=torch.optim.Adam(network.parameters()),
        )

    with pytest.raises(
        ValueError, match="'probabilities' of model_fn.*between 0 and 1"
    ):
        make(model_fn).fit(*pairs).predict_proba(pairs[0])
