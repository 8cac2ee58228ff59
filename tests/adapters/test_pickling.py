# SPDX-License-Identifier: Apache-2.0
"""Every way to save an estimator gives back the same, bit for bit."""

import pickle
import pickletools
import shutil

import cloudpickle
import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skest import DNNClassifier, DNNEstimator, DNNLinearCombinedClassifier, RunConfig
from skest import feature_columns as fc
from skest.heads import BinaryClassHead
from tests.adapters._families import FAMILIES, rows_for, small


def by_pickle(model, path):
    return pickle.loads(pickle.dumps(model))


def by_mapped_joblib(model, path):
    joblib.dump(model, path)
    return joblib.load(path, mmap_mode="r")


def by_cloudpickle(model, path):
    return pickle.loads(cloudpickle.dumps(model))


def by_skops(model, path):
    skops = pytest.importorskip("skops.io")
    skops.dump(model, path)
    untrusted = skops.get_untrusted_types(file=path)
    own = f"{type(model).__module__}.{type(model).__qualname__}"
    functions = [t for t in untrusted if t.startswith("tests.")]  # a model_fn
    assert sorted(untrusted) == sorted([own, *functions])
    return skops.load(path, trusted=untrusted)


WAYS = [by_pickle, by_mapped_joblib, by_cloudpickle, by_skops]


def predictions(model, X):
    names = ("predict", "predict_proba", "decision_function")
    return [getattr(model, name)(X) for name in names if hasattr(model, name)]


def assert_same_predictions(model, other, X):
    for one, two in zip(predictions(model, X), predictions(other, X), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture
def wide_and_deep():
    city = fc.categorical_column_with_vocabulary_list("city")
    deep = fc.FeatureColumns(
        [
            ("age", fc.numeric_column("age", normalizer="quantile")),
            ("city", fc.embedding_column(city, dimension=2)),
            ("waves", fc.periodic_column(fc.numeric_column("age"))),
            ("bins", fc.piecewise_linear_column(fc.numeric_column("age"))),
        ]
    )
    age = fc.bucketized_column(fc.numeric_column("age"), boundaries="quantiles:4")
    return DNNLinearCombinedClassifier(
        (6,),
        linear_feature_columns=[age, fc.crossed_column(["city", "job"], 50)],
        dnn_feature_columns=deep,
        max_iter=3,
        early_stopping=False,
        random_state=0,
    )


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if not name.endswith("Regressor")]
)
def test_every_estimator(name, tmp_path):
    model = clone(FAMILIES[name])
    X, y, weight = rows_for(model)
    unfitted = by_skops(model, tmp_path / "before")
    assert repr(unfitted) == repr(model)
    model.fit(X, y, weight)
    assert not names_of_torch(pickle.dumps(model))
    copies = [way(model, tmp_path / way.__name__) for way in WAYS]
    for loaded in copies:
        assert_same_predictions(loaded, model, X)
    assert copies[0].evaluate(X, y) == model.evaluate(X, y)
    if hasattr(model, "partial_fit"):
        mapped = copies[WAYS.index(by_mapped_joblib)].partial_fit(X, y)
        assert_same_predictions(mapped, model.partial_fit(X, y), X)
        assert mapped.loss_curve_ == model.loss_curve_


def test_columns(wide_and_deep, table, tmp_path):
    X, y = table
    model = wide_and_deep.fit(X, y)
    vectors = model.dnn_feature_columns_.transform(X)
    for way in WAYS:
        loaded = way(model, tmp_path / way.__name__)
        np.testing.assert_array_equal(loaded.dnn_feature_columns_.transform(X), vectors)
        assert_same_predictions(loaded, model, X.assign(city="Paris", age=99))


def test_a_head_with_names_of_classes(table, tmp_path):
    X, y = table
    names = sorted(set(y))
    head = BinaryClassHead(label_vocabulary=[str(name) for name in names])
    model = small(DNNEstimator, head=head)
    model.fit(X, [str(label) for label in y])
    for way in WAYS:
        assert_same_predictions(way(model, tmp_path / way.__name__), model, X)


def test_folds_in_a_pipeline(tmp_path):
    # What a pipeline tells its steps for callbacks is of the fit only.
    X, y = (part[::2] for part in load_iris(return_X_y=True))
    model = make_pipeline(StandardScaler(), DNNClassifier((4,), max_iter=2)).fit(X, y)
    assert model[-1].fold_estimators_
    skops = pytest.importorskip("skops.io")
    skops.dump(model, tmp_path / "model")
    loaded = skops.load(tmp_path / "model", trusted=[DNNClassifier])
    assert_same_predictions(loaded, model, X)


def test_functions_of_the_users(table):
    X, y = table
    activation = lambda x: torch.relu(x) + 0.1 * x  # noqa: E731
    model = small(DNNClassifier, activation=activation).fit(X, y)
    assert_same_predictions(by_cloudpickle(model, None), model, X)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(model)


def names_of_torch(pickled):
    """Return the names of modules of torch that a pickle asks for."""
    names = (argument for _, argument, _ in pickletools.genops(pickled))
    return {name for name in names if str(name).partition(".")[0] == "torch"}


def test_a_model_of_a_gpu_that_is_not_there(table, monkeypatch):
    X, y = table
    model = small(DNNClassifier).fit(X, y)
    expected = model.predict_proba(X)
    model.estimator_._config = model.estimator_.config.replace(device="cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="finds no CUDA device"):
        model.predict_proba(X)
    np.testing.assert_array_equal(by_pickle(model, None).predict_proba(X), expected)


def test_a_model_of_a_directory_needs_it_no_more(table, tmp_path):
    X, y = table
    config = RunConfig(model_dir=tmp_path / "runs")
    model = small(DNNClassifier, max_iter=1, config=config).fit(X, y)
    copies = [way(model, tmp_path / way.__name__) for way in WAYS]
    shutil.rmtree(model.model_dir_)
    for loaded in copies:
        assert loaded.model_dir_ == model.model_dir_
        assert loaded.predict(X).shape == (200,)


def test_files_do_not_grow_with_the_data():
    sizes = []
    for n_rows in (1100, 5000):  # enough for all edges of the columns of numbers
        X, y, weight = rows_for(small(DNNClassifier), n_rows=n_rows)
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        model = small(DNNClassifier, max_iter=1, early_stopping=True)
        model.fit(frame, y, weight, X_val=frame, y_val=y, sample_weight_val=weight)
        saved = pickle.dumps(model)
        for values in (X, X[:, 0], y, weight):
            assert np.ascontiguousarray(values).tobytes() not in saved
        sizes.append(len(saved))
    variables = model.estimator_.checkpoint.variables
    n_bytes = sum(value.nbytes for value in variables.values())
    assert abs(sizes[1] - sizes[0]) < 100
    # Two states of torch's generators are 10 KiB of them.
    assert sizes[1] < 3 * n_bytes + 20_000
