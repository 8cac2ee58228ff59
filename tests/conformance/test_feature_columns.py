# SPDX-License-Identifier: Apache-2.0
"""Feature columns pass scikit-learn's checks, and work where its transformers do."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from skest import feature_columns as fc
from skest.feature_columns.base import as_dense
from tests.conformance.test_estimator_checks import assert_all_pass

BUCKETS = fc.bucketized_column(fc.numeric_column("x0"), "quantiles:4")
CROSS = fc.crossed_column(
    [BUCKETS, fc.bucketized_column(fc.numeric_column(0), [0.0])], 10
)
# Arrays of floats hold no strings, so that categories come from buckets here.
READ_ARRAYS = [
    fc.FeatureColumns([fc.numeric_column(0), BUCKETS, CROSS]),
    fc.indicator_column(fc.SparseMatrixColumn()),
]
MORE = [
    fc.numeric_column("x0", default_value="mean", indicate_missing="auto"),
    fc.numeric_column(0, normalizer="standard"),
    BUCKETS,
    fc.indicator_column(CROSS),
    fc.numeric_column("x0"),
    fc.numeric_column("x0", normalizer="minmax", dtype="float64"),
    fc.numeric_column("x0", normalizer="quantile"),
    fc.numeric_column("x0", normalizer="robust"),
    fc.numeric_column("x0", normalizer=np.arctan),
    fc.bucketized_column(fc.numeric_column("x0"), [-1.0, 0.0, 1.0]),
    fc.piecewise_linear_column(fc.numeric_column("x0")),
    CROSS,
    fc.FeatureColumns([("few", BUCKETS), ("many", CROSS)], sparse_output=True),
    fc.FeatureColumns([("mean", fc.numeric_column("x0", default_value="mean"))]),
    fc.FeatureColumns([("nothing open", fc.numeric_column("x0"))]),
    fc.SparseMatrixColumn(),
    fc.FeatureColumns([fc.SparseMatrixColumn()], sparse_output=True),
]


@parametrize_with_checks(READ_ARRAYS, xfail_strict=True)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.nightly
@pytest.mark.parametrize("column", MORE, ids=lambda column: type(column).__name__)
def test_scikit_learn_checks_of_more(column):
    assert_all_pass(column)


X = pd.DataFrame(
    {
        "age": [20.0, 41.0, np.nan, 40.0, 33.0, 58.0],
        "city": ["Bern", "Oslo", None, "Bern", "Rome", "Oslo"],
        "tags": ["a|b", "b", "", "c|a|b", "c", None],
        "month": [0, 11, 5, -1, 5, 2],
    }
)
Y = [0, 1, 0, 0, 1, 1]
CITY = fc.categorical_column_with_vocabulary_list("city", num_oov_buckets=1)
AGE = fc.numeric_column("age", default_value="mean", normalizer="standard")
COLUMNS = {
    "numeric": AGE,
    "indicated": fc.numeric_column("age", default_value=0, indicate_missing=True),
    "quantile": fc.numeric_column("age", default_value=0, normalizer="quantile"),
    "bucketized": fc.bucketized_column(fc.numeric_column("age"), "quantiles:3"),
    "piecewise": fc.piecewise_linear_column(fc.numeric_column("age"), encoding="hat"),
    "identity": fc.categorical_column_with_identity("month", 12),
    "vocabulary": CITY,
    "hash bucket": fc.categorical_column_with_hash_bucket("tags", 20, delimiter="|"),
    "crossed": fc.crossed_column([CITY, "month"], 30),
    "indicator": fc.indicator_column(CITY),
    "FeatureColumns": fc.FeatureColumns([("age", AGE), ("city", CITY)]),
    "sparse": fc.FeatureColumns([("age", AGE), ("city", CITY)], sparse_output=True),
}
EVERY_COLUMN = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())


@EVERY_COLUMN
def test_set_output(column):
    column = clone(column)
    matrix = column.fit(X).transform(X)
    names = column.get_feature_names_out()
    assert names.dtype == object
    assert len(set(names)) == len(names) == matrix.shape[1]
    assert_array_equal(column.get_feature_names_out(list(X)), names)
    for library, frame_type in {"pandas": pd.DataFrame, "polars": pl.DataFrame}.items():
        column.set_output(transform=library)
        if column.get_params().get("sparse_output"):
            with pytest.raises(ValueError, match="sparse"):
                column.transform(X)
            continue
        frame = column.transform(X)
        assert isinstance(frame, frame_type)
        assert list(frame.columns) == list(names)
        assert_array_equal(frame.to_numpy(), as_dense(matrix))


@EVERY_COLUMN
def test_columns_are_found_by_name(column):
    fitted = clone(column).fit(X)
    assert fitted.n_features_in_ == 4
    assert_array_equal(fitted.feature_names_in_, X.columns)
    expected = as_dense(fitted.transform(X))
    others = [X[list(X)[::-1]], X.assign(more=1), pl.from_pandas(X)]
    for same in [*others, pa.Table.from_pandas(X), X.to_dict("series")]:
        assert_array_equal(as_dense(fitted.transform(same)), expected)
    with pytest.raises(ValueError, match="is not in X"):
        fitted.transform(X.rename(columns=str.upper))
    with pytest.raises(ValueError, match="X has 3 features, but .* expecting 4"):
        fitted.transform(X.to_numpy()[:, :3])

    transformer = ColumnTransformer([("c", column, list(X))], sparse_threshold=1)
    assert_array_equal(as_dense(transformer.fit_transform(X)), expected)
    names = transformer.get_feature_names_out()
    assert all(name.startswith("c__") for name in names)
    assert not hasattr(column, "n_features_in_")

    again = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(as_dense(again.transform(X)), expected)
    params = clone(fitted).get_params()
    rebuilt = type(column)(**column.get_params(deep=False)).set_params(**params)
    assert_array_equal(as_dense(rebuilt.fit(X).transform(X)), expected)


def test_before_models_of_scikit_learn():
    boosting = HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=1)
    for name, last in [
        ("sparse", LogisticRegression()),
        ("FeatureColumns", LogisticRegression()),
        ("FeatureColumns", boosting),
    ]:
        model = make_pipeline(clone(COLUMNS[name]), last).fit(X, Y)
        assert model.predict(X).shape == (6,)
        assert_array_equal(model.predict(pl.from_pandas(X)), model.predict(X))


def test_nested_parameters():
    columns = clone(COLUMNS["FeatureColumns"])
    columns.set_params(age__normalizer="minmax", city__max_categories=1)
    matrix = columns.fit(X).transform(X)
    assert matrix[:, 0].max() == 1
    assert columns.get_feature_names_out().tolist() == ["age", "city_Bern", "city_oov0"]
    with pytest.raises(ValueError, match="Invalid parameter 'boundaries'"):
        columns.set_params(age__boundaries=[1])
