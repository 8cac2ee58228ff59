# SPDX-License-Identifier: Apache-2.0

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from skest import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNRegressor,
    LinearClassifier,
)
from skest.feature_columns import (
    FeatureColumns,
    numeric_column,
    piecewise_linear_column,
)
from skest.feature_columns.infer import infer_feature_columns, with_piecewise
from skest.feature_columns.joined import with_feature_names
from tests._models import single

NAN = np.nan


def encoded(column, values):
    return column.encode({column.key: np.asarray(values)})[column.name]


@pytest.mark.parametrize("dtype", ["float32", np.float64])
@pytest.mark.parametrize(
    ("normalizer", "scaler"),
    [("standard", StandardScaler()), ("minmax", MinMaxScaler())],
)
def test_scaling_is_that_of_scikit_learn(dtype, normalizer, scaler, rng):
    X = rng.normal(3, 2, size=(50, 3)).astype(dtype)
    X[:, 1] = 4  # constant
    column = numeric_column("x", shape=3, dtype=dtype, normalizer=normalizer)
    result = column.fit({"x": X}).transform({"x": X})
    assert result.dtype == dtype
    assert_allclose(result, scaler.fit_transform(X), rtol=1e-4, atol=1e-5)


def test_robust_scaling_is_that_of_realmlp(rng):
    X = np.stack([rng.standard_cauchy(101), rng.random(101) < 0.1, np.full(101, 4)], 1)
    X[:2, 0] = 3e38, -3e38
    low, median, high = np.quantile(X[:, 0], [0.25, 0.5, 0.75])
    scaled = np.stack([(X[:, 0] - median) / (high - low), X[:, 1] * 2, X[:, 2] - 4], 1)
    column = numeric_column("x", 3, normalizer="robust").fit({"x": X})
    expected = scaled / np.hypot(1, scaled / 3)
    assert_allclose(column.transform({"x": X}), expected, rtol=1e-5, atol=1e-6)
    assert column.transform({"x": X})[:2, 0].tolist() == [3, -3]


def test_auto_scaling_is_standard_but_of_what_is_mostly_the_same(rng):
    X = np.stack([rng.normal(3, 2, 60), np.zeros(60), np.full(60, 4.0)], axis=1)
    X[:3, 1] = [6, 6, 30]
    standard, auto = (
        numeric_column("x", 3, normalizer=name).fit({"x": X}).transform({"x": X})
        for name in ("standard", "auto")
    )
    assert_allclose(auto[:, [0, 2]], standard[:, [0, 2]])
    assert_allclose(auto[:, 1], X[:, 1] / np.sqrt((6**2 + 6**2 + 30**2) / 3), rtol=1e-6)


@pytest.mark.parametrize("other", [1e-200, 0.1 + 0.2 - 0.2])
def test_auto_scaling_makes_nothing_of_rounding(other):
    X = np.full(60, round(other, 9))
    X[-3:] = other
    column = numeric_column("x", normalizer="auto", dtype="float64").fit({"x": X})
    assert column.scale_.tolist() == [1]
    assert_allclose(column.transform({"x": X}), 0, atol=1e-15)


@pytest.mark.parametrize("normalizer", ["standard", "auto", "minmax", "robust"])
def test_weights_are_repetitions(normalizer, rng):
    X = rng.normal(size=(8, 2))
    X[:, 1] = [0, 3, 0, 0, 2, 0, 0, 1]
    X[2, 0] = X[6, 1] = NAN
    weight = np.array([0, 3, 1, 2, 0, 1, 2, 1])
    options = {"default_value": "mean", "dtype": "float64", "normalizer": normalizer}
    weighted, repeated = (numeric_column("x", shape=2, **options) for _ in range(2))
    weighted.fit({"x": X}, sample_weight=weight)
    repeated.fit({"x": np.repeat(X, weight, axis=0)})
    for name in ("fill_", "center_", "scale_"):
        assert_allclose(getattr(weighted, name), getattr(repeated, name))


def test_default_value_fills_before_scaling():
    column = numeric_column("x", default_value=5, normalizer=lambda x: x * 10)
    assert encoded(column, [NAN, 1.0]).tolist() == [[50.0], [10.0]]


def test_every_element_may_have_its_default_value():
    for shape, default in [
        (3, [1.0, 2, 3]),
        ((3, 1), [[1], [2], [3]]),
        (3, np.array([1.0, 2.0, 3.0])),
        ((3, 1), np.array([[1], [2], [3]], dtype=np.int32)),
    ]:
        X = {"x": np.array([[NAN, 5.0, NAN], [4, 5, 6], [NAN, NAN, NAN]])}
        column = numeric_column("x", shape, default, indicate_missing="auto")
        expected = [[1, 5, 3], [4, 5, 6], [1, 2, 3]]
        missing = np.isnan(X["x"])
        matrix = clone(column).fit_transform(X)
        assert matrix.tolist() == np.hstack([expected, missing]).tolist()


def test_indicators():
    X = {"x": np.array([[1.0, NAN], [3.0, 8.0]])}
    column = numeric_column("x", shape=2, default_value=0, indicate_missing=True)
    assert column.size == 4
    assert encoded(column, X["x"]).tolist() == [[1, 0, 0, 1], [3, 8, 0, 0]]
    names = ["x_0", "x_1", "x_0_missing", "x_1_missing"]
    assert column.get_feature_names_out().tolist() == names


def test_automatic_indicators_are_learned():
    X = {"x": np.array([[1.0, NAN], [3.0, 8.0]])}
    column = numeric_column("x", shape=2, default_value=0, indicate_missing="auto")
    with pytest.raises(NotFittedError, match="'x' has not learned its indicated yet"):
        column.size  # noqa: B018
    column.fit(X)
    assert column.size == 3
    assert encoded(column, [[NAN, 1.0]]).tolist() == [[0, 1, 0]]
    assert column.get_feature_names_out().tolist() == ["x_0", "x_1", "x_1_missing"]


def test_integers_are_encoded_as_floats_for_int64_means_ids():
    column = numeric_column("x", dtype="int64")
    assert encoded(column, [1, 2]).dtype == np.float64
    assert column.transform({"x": [1, 2]}).dtype == np.int64


def test_normalizer_sees_the_shape_of_the_cells():
    column = numeric_column("x", shape=(2, 2), normalizer=lambda x: x[:, ::-1])
    assert encoded(column, [[[1, 2], [3, 4]]]).tolist() == [[3, 4, 1, 2]]


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_cells_refused():
    for options, values, message in [
        ({}, [1, NAN], "'x' holds NaN .* Set 'default_value' to a number or to 'mean'"),
        ({}, [1, np.inf], "'x' holds inf; infinity"),
        ({}, [1e300], r"'x' holds 1e\+300, which is infinity in dtype float32"),
        ({"shape": 2}, [1.0], r"'x' must have shape \(2,\); got \(1,\)"),
        ({"dtype": "int64"}, [1.5], r"'x' holds 1\.5, which dtype int64 cannot hold"),
        ({"normalizer": np.log}, [1.0, 0.0], "'normalizer' of .* 'x' returned NaN or"),
        ({"normalizer": lambda x: x[:1]}, [1.0, 2.0], "must return an array of shape"),
    ]:
        column = numeric_column("x", **options)
        with pytest.raises(ValueError, match=message):
            encoded(column, values)
        with pytest.raises(ValueError, match=message):
            column.fit({"x": np.asarray(values)})


def test_parameters_refused():
    for options, error, message in [
        ({"key": 1.5}, TypeError, "'key' of numeric column 1.5 must be the name"),
        ({"shape": 2.0}, TypeError, "'shape' .* must be an integer of .* got 2.0"),
        (
            {"default_value": 2.7, "dtype": "int32"},
            ValueError,
            "'default_value' .* is 2.7, which its dtype int32 cannot hold",
        ),
        ({"default_value": 1e300}, ValueError, "which its dtype float32 cannot hold"),
        ({"shape": (1.5,)}, TypeError, "'shape' of numeric column 'x'"),
        ({"default_value": "median"}, ValueError, "'mean' or None; got 'median'"),
        ({"default_value": [1, 2]}, ValueError, r"of shape \(1,\), .* got \[1, 2\]"),
        ({"default_value": [NAN]}, ValueError, r"a finite number, .* got \[nan\]"),
        ({"dtype": "float16"}, ValueError, "'dtype' .* must be one of 'float32'"),
        ({"normalizer": "zscore"}, ValueError, "'normalizer' .* must be .* of 'standa"),
        ({"indicate_missing": "yes"}, ValueError, "'indicate_missing' .* one of True"),
        ({"indicate_missing": True}, ValueError, "no 'default_value' to put in place"),
        (
            {"normalizer": "standard", "dtype": "int64"},
            ValueError,
            "which do not give integers",
        ),
        (
            {"default_value": "mean", "dtype": "int64"},
            ValueError,
            "which do not give integers",
        ),
    ]:
        with pytest.raises(error, match=message):
            numeric_column(**{"key": "x", **options})
        column = numeric_column("x").set_params(**options)
        with pytest.raises(error, match=message):
            column.fit({"x": [1.0]})


def test_nothing_to_learn_from():
    for values, weight in [([[NAN], [NAN]], None), ([[1.0], [NAN]], [0, 1])]:
        column = numeric_column("x", default_value="mean")
        with pytest.raises(ValueError, match="'x' has no numbers to learn"):
            column.fit({"x": np.array(values)}, sample_weight=weight)


@pytest.mark.parametrize(
    "normalizer", ["auto", "standard", "robust", "quantile", "minmax"]
)
def test_an_element_without_numbers_is_zero_for_good(normalizer):
    values = np.array([[1.0, NAN], [2.0, NAN], [4.0, NAN]])
    options = {"default_value": "mean", "indicate_missing": "auto"}
    column = numeric_column("x", shape=2, normalizer=normalizer, **options)
    column.fit({"x": values})
    later = np.array([[1.0, 5.0], [2.0, -1e30], [4.0, 0.0]])
    one = numeric_column("x", normalizer=normalizer, **options).fit({"x": values[:, 0]})
    expected = one.transform({"x": values[:, 0]})
    for X in (values, later):
        found = column.transform({"x": X})
        assert_array_equal(found[:, 1:], 0)
        assert_allclose(found[:, :1], expected)
    pieces = piecewise_linear_column(numeric_column("x", shape=2), "distinct:4")
    found = pieces.fit({"x": values}).transform({"x": later})
    assert found[:, :-1].any() and not found[:, -1].any()


@pytest.mark.parametrize(
    "column",
    [
        numeric_column("x", shape=2, default_value="mean"),
        numeric_column("x", shape=2, default_value="mean", normalizer=np.sqrt),
        piecewise_linear_column(
            numeric_column("x", shape=2), "distinct:4", None, "hat"
        ),
    ],
)
def test_an_element_without_numbers_and_scale_is_refused(column):
    with pytest.raises(ValueError, match="Column 'x'.* has no numbers to learn"):
        column.fit({"x": np.array([[1.0, NAN], [2.0, NAN]])})


def frame(second):
    """Return two columns of numbers, of which the first has a gap."""
    values = np.random.default_rng(0).normal(size=(20, 2))
    values[3, 0] = np.nan
    return pd.DataFrame(values, columns=["f", second])


@pytest.mark.parametrize(
    ("model", "attribute", "second"),
    [
        (DNNClassifier((2,), max_iter=1), "feature_columns_", "g"),
        (LinearClassifier(max_iter=1), "feature_columns_", "x"),
        (DNNLinearCombinedClassifier((2,), max_iter=1), "dnn_feature_columns_", "x0"),
    ],
)
def test_fitted_columns_of_an_estimator_take_its_frame(model, attribute, second):
    X = frame(second)
    fitted = clone(model).fit(X, np.arange(20) % 2)
    columns = getattr(pickle.loads(pickle.dumps(fitted)), attribute)
    inferred = infer_feature_columns(X.to_numpy())
    if not isinstance(model, LinearClassifier):
        inferred = with_piecewise(inferred)
    array = inferred.fit(X.to_numpy())
    expected = columns.transform(X.to_numpy())
    assert_allclose(expected, array.transform(X.to_numpy()))
    assert_array_equal(columns.transform(X), expected)
    assert_array_equal(columns.transform(X[X.columns[::-1]]), expected)
    assert_array_equal(columns.transform(pl.DataFrame(X.to_dict("list"))), expected)
    assert_array_equal(columns.transform(X.to_dict("list")), expected)
    names = ["f", second, "f_missing"]
    if not isinstance(model, LinearClassifier):
        names += [f"{name}_ple_{i}" for name in X for i in range(6)]
    assert columns.get_feature_names_out().tolist() == names
    with_names = clone(columns).set_output(transform="pandas").fit_transform(X)
    assert list(with_names) == names
    assert_allclose(with_names, expected)


def test_of_another_frame():
    X = frame("g")
    columns = with_feature_names(infer_feature_columns(X.to_numpy()), ["f", "g"])
    columns.fit(X)
    with pytest.raises(ValueError, match="Column 'g' is not in X, which has 'f', 'h'"):
        columns.transform(X.rename(columns={"g": "h"}))
    with pytest.raises(ValueError, match="X has 1 features, but FeatureColumns is exp"):
        columns.transform(X[["f"]].to_numpy())


@pytest.mark.parametrize(
    ("first", "dtype", "mend"),
    [
        (2**60, "float64", "if they count, subtract the least"),
        (2**30, "float32", "if they count, give dtype='float64', or subtract"),
    ],
)
def test_integers_that_become_alike_are_told(first, dtype, mend):
    column = numeric_column("n", dtype=dtype, normalizer="standard")
    message = f"'n' holds integers beyond .* become alike as {dtype}.* {mend}"
    with pytest.warns(UserWarning, match=message):
        column.fit({"n": first + np.arange(100)})
    with pytest.warns(UserWarning, match=message):  # the label, say
        column.fit({"n": first + np.arange(100) % 2})


@pytest.mark.filterwarnings("error")
def test_large_integers_that_stay_different_are_fine():
    column = numeric_column("n", dtype="float64", normalizer="standard")
    column.fit({"n": 2**40 + np.arange(100)})
    column.fit({"n": 2**60 + 2**53 * np.arange(100)})
    column.fit({"n": np.full(100, 2**60 + 1)})


def test_what_is_trained_on_is_never_cut_off():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": np.sort(rng.uniform(0, 10, 1200)), "equal": 0.1})
    y = 3 * X["a"]
    model = single(DNNRegressor, hidden_units=(32,), learning_rate=0.02)
    for start in [*range(0, 1200, 200)] * 5:
        model.partial_fit(X[start : start + 200], y[start : start + 200])
    assert r2_score(y, model.predict(X)) > 0.95
    model.set_params(max_iter=6, warm_start=True)
    model = clone(model).fit(X[:300], y[:300]).fit(X, y)
    assert r2_score(y, model.predict(X)) > 0.95


def test_auto_keeps_later_numbers_near_those_of_fit():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(300, 2)).round(3), columns=["a", "b"])
    X["equal"] = 5.0
    X.loc[0, "a"] = np.nan
    for columns, given in (
        ([numeric_column(k, normalizer="auto", default_value="mean") for k in X], X),
        (
            [numeric_column("x", 2, normalizer="auto")],
            {"x": X[["a", "b"]].to_numpy()[1:]},
        ),
    ):
        columns = FeatureColumns(columns).fit(given)
        within = columns.transform(given)
        columns = columns._with_limits(given)
        far = {k: np.full(np.shape(v), 999.0) for k, v in dict(given).items()}
        # Twice the greatest distance; a column of equal numbers has none.
        expected = 2 * abs(within).max(axis=0)
        expected[expected == 0] = 999 - 5
        assert_allclose(columns.transform(far)[0], expected, rtol=1e-6)
        with pytest.raises(ValueError, match="inf"):
            columns.transform({k: v + np.inf for k, v in far.items()})


def test_a_code_for_a_gap_that_fit_has_not_seen_does_not_outweigh_all_else():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(1200, 2)), columns=["a", "none"])
    model = single(DNNRegressor, max_iter=20).fit(X, 2 * X["a"])
    assert r2_score(2 * X["a"], model.predict(X.assign(none=999.0))) > 0.9
