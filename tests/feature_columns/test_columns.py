# SPDX-License-Identifier: Apache-2.0

import pickle
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skest import feature_columns as fc
from skest.feature_columns.columns import same

X = pd.DataFrame({"age": [20.0, 40.0, 60.0, 40.0], "education": ["b", "a", "b", "c"]})
AGE = fc.numeric_column("age")


def columns(**options):
    education = fc.categorical_column_with_vocabulary_list("education")
    return fc.FeatureColumns(
        [
            ("age", fc.numeric_column("age", normalizer="standard")),
            ("education", fc.indicator_column(education)),
        ],
        **options,
    )


def test_columns_with_nothing_open_need_no_fit():
    closed = fc.FeatureColumns([fc.numeric_column("age")])
    assert closed.encode(X)["age"][:, 0].tolist() == X["age"].tolist()
    with pytest.raises(NotFittedError, match="'age' has not learned"):
        columns().encode(X)


def test_fit_leaves_the_parameters_alone_and_keeps_no_data():
    made = columns()
    given = [column for _, column in made.columns]
    made.fit(X)
    assert [column for _, column in made.columns] == given
    assert not hasattr(made.columns[0][1], "center_")
    assert [name for name, _ in made.columns_] == ["age", "education"]
    assert len(pickle.dumps(made.fit(pd.concat([X] * 1000)))) < 10_000


@pytest.mark.parametrize("interface", [None, "spmatrix", "sparray"])
def test_transform(interface):
    made = columns(sparse_output=interface is not None).fit(X)
    with sklearn.config_context(sparse_interface=interface or "sparray"):
        matrix = made.transform(X)
    assert scipy.sparse.issparse(matrix) == (interface is not None)
    if interface is not None:
        assert scipy.sparse.isspmatrix(matrix) == (interface == "spmatrix")
        matrix = matrix.toarray()
    assert matrix.dtype == np.float32
    assert_array_equal(matrix[:, 1:], [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    names = ["age", "education_a", "education_b", "education_c"]
    assert made.get_feature_names_out().tolist() == names


def test_failed_fit_leaves_what_was_learned():
    made = columns().fit(X)
    expected = made.transform(X)
    for wrong, message in (
        (X.assign(age=np.inf), "'age' holds inf"),
        (X.assign(education=1.5), "'education' holds numbers that are not whole"),
        (X.drop(columns="education"), "'education' is not in X"),
        (X[:0], r"0 sample\(s\)"),
    ):
        with pytest.raises(ValueError, match=message):
            made.fit(wrong)
        assert_array_equal(made.transform(X), expected)


def test_sample_weight():
    made = columns().fit(X, sample_weight=[1, 1, 0, 0])
    assert made.columns_[0][1].center_.tolist() == [30]
    assert list(made.columns_[1][1].categorical_column_.vocabulary_) == ["a", "b"]


def test_columns_refused():
    for given, error, message in [
        ([], ValueError, "must be a non-empty list of feature columns"),
        (["age"], TypeError, "must hold feature columns, .*; got 'age'"),
        ([("age", "age")], TypeError, r"in pairs .*; got \('age', 'age'\) at .* 0"),
        ([(1, AGE)], TypeError, r"got \(1, NumericColumn.* at position 0"),
        ([AGE, ("b", AGE)], TypeError, r"got \('b', NumericColumn.* at position 1"),
        (
            [("a", fc.numeric_column("a")), ("a", fc.numeric_column("b"))],
            ValueError,
            "not unique",
        ),
        ([("columns", fc.numeric_column("a"))], ValueError, "conflict .* constructor"),
        (
            [
                fc.categorical_column_with_identity("a", 4),
                fc.indicator_column(fc.categorical_column_with_identity("a", 3)),
            ],
            ValueError,
            "Two feature columns encode 'a_ids' in different ways",
        ),
    ]:
        with pytest.raises(error, match=message):
            fc.FeatureColumns(given).fit(X)
        with pytest.raises(error, match=message):
            fc.FeatureColumns(given).encode(X)


def test_inverse():
    city, town = (
        fc.categorical_column_with_vocabulary_list(key) for key in ("city", "town")
    )
    tags = fc.categorical_column_with_vocabulary_list("tags", ["a", "b"])
    url = fc.categorical_column_with_hash_bucket("url", 9)
    seen = fc.sequence_categorical_column_with_identity("seen", 5)
    age = fc.numeric_column("age")
    shared = fc.shared_embeddings([city, town], 2)
    made = fc.FeatureColumns(
        [
            ("city", shared[0]),
            ("town", shared[1]),
            (
                "tags",
                fc.indicator_column(fc.weighted_categorical_column(tags, "counts")),
            ),
            ("plain", tags),
            ("seen", fc.embedding_column(seen, 2)),
            ("age", fc.bucketized_column(age, [30])),
            ("number", age),
            ("url", fc.embedding_column(url, 2)),
            ("cross", fc.indicator_column(fc.crossed_column(["city", "town"], 9))),
        ]
    )
    X = {
        "city": np.array(["Oslo", "Bern"]),
        "town": np.array(["Rome", ""]),
        "tags": [["b", "zzz"], ["a"]],
        "counts": [[1, 2], [3]],
        "seen": [[4, 2], []],
        "age": np.array([20.0, 40.0]),
        "url": ["a.org", "b.org"],
    }
    found = made.fit(X).inverse(made.encode(X))
    age_below, age_above = found.pop("age")[:, 0]
    assert (20 in age_below, 40 in age_below, 40 in age_above) == (True, False, True)
    assert {name: categories.tolist() for name, categories in found.items()} == {
        "city": [["Oslo"], ["Bern"]],
        "town": [["Rome"], [None]],
        "tags": [["b", None], ["a", None]],
        "plain": [["b", None], ["a", None]],
        "seen": [[4, 2], [None, None]],
    }


def test_inverse_of_rows():
    made = fc.FeatureColumns([fc.categorical_column_with_vocabulary_list("education")])
    encoded = made.fit(X).encode(X)
    rows = {key: tensor[2:] for key, tensor in encoded.items()}
    assert made.inverse(rows)["education"].tolist() == [["b"], ["c"]]
    with pytest.raises(ValueError, match="column 'education' .* 'education_ids'; got"):
        made.inverse({"education": rows["education_ids"]})
    with pytest.raises(TypeError, match="'ids' must be integers; got dtype float32"):
        made.inverse({"education_ids": rows["education_ids"].float()})
    with pytest.raises(NotFittedError, match="'education' has not learned"):
        clone(made).inverse(rows)


def test_names_of_a_plain_list_of_columns():
    keys = ["age", "a__b", "columns", "a_b"]
    made = fc.FeatureColumns([fc.numeric_column(key) for key in keys])
    names = [name for name, _ in made._named_columns]
    assert names == ["age", "a_b", "columns_2", "a_b_2"]
    for name in names:
        made.set_params(**{f"{name}__default_value": 7})
    assert [column.default_value for column in made.active] == [7] * 4
    assert made.get_params(deep=False)["columns"] is made.columns
    assert [column.key for column in made.active] == keys


def test_grid_search_reaches_into_columns():
    search = GridSearchCV(
        make_pipeline(columns(), LogisticRegression()),
        {"featurecolumns__education__categorical_column__max_categories": [1, 3]},
        cv=2,
    )
    search.fit(pd.concat([X] * 3), [0, 1, 0, 1] * 3)
    assert search.best_score_ > 0.9


def test_names_that_occur_twice_are_those_of_a_column_transformer():
    education = fc.categorical_column_with_vocabulary_list("education")
    outputs = ["education_a", "education_b", "education_c"]
    listed = fc.FeatureColumns([education, fc.indicator_column(education)]).fit(X)
    assert listed.get_feature_names_out().tolist() == [
        *(f"education__{name}" for name in outputs),
        *(f"education_indicator__{name}" for name in outputs),
    ]
    named = fc.FeatureColumns(
        [
            ("wide", education),
            ("deep", fc.indicator_column(education)),
            ("age", fc.numeric_column("age")),
        ]
    ).fit(X)
    expected = [f"{part}__{name}" for part in ("wide", "deep") for name in outputs]
    assert named.get_feature_names_out().tolist() == [*expected, "age__age"]
    frame = named.set_output(transform="pandas").transform(X)
    assert list(frame) == [*expected, "age__age"]
    assert named.set_output(transform="polars").transform(X).columns == list(frame)


VOCABULARY = ["a", "b"]
LISTS = {
    "list": VOCABULARY,
    "tuple": tuple(VOCABULARY),
    "ndarray": np.array(VOCABULARY),
    "objects": np.array(VOCABULARY, dtype=object),
    "Series": pd.Series(VOCABULARY, index=[7, 8]),
    "Index": pd.Index(VOCABULARY),
    "extension": pd.array(VOCABULARY, dtype="string"),
    "polars": pl.Series(VOCABULARY),
}
PAIRS = pd.DataFrame({"x": [1.0, 2.0], "c": VOCABULARY, "n": [0, 1]})


def power(x, exponents, scale=1):
    return x ** exponents[0] * scale


NORMALIZERS = {
    "name": "standard",
    "partial": partial(power, exponents=np.array([2])),
    "nested partial": partial(partial(power, exponents=[2]), scale=3),
}


def numeric(**options):
    return fc.bucketized_column(fc.numeric_column("x", **options), [1.5])


def listed(vocabulary, **options):
    return fc.categorical_column_with_vocabulary_list("c", vocabulary, **options)


COLUMNS = {
    **{f"normalizer: {k}": numeric(normalizer=v) for k, v in NORMALIZERS.items()},
    "dtype": numeric(dtype=np.float64),
    "default": numeric(default_value="mean"),
    "quantiles": fc.bucketized_column(fc.numeric_column("x"), "quantiles:2"),
    "learned": listed(None, min_frequency=0.1, max_categories=2),
    "delimiter": listed(VOCABULARY, delimiter="|"),
    "identity": fc.categorical_column_with_identity("n", 3, default_value=0),
    "hash": fc.categorical_column_with_hash_bucket("c", 3, "string"),
    "cross": fc.crossed_column([listed(pd.Series(VOCABULARY)), "n"], 9, 7),
    "weighted": fc.weighted_categorical_column(
        listed(pd.Index(VOCABULARY)), "x", np.float32
    ),
    "sequence": fc.sequence_categorical_column_with_vocabulary_list(
        "c", np.array(VOCABULARY)
    ),
}


@pytest.mark.parametrize("source", COLUMNS.values(), ids=COLUMNS.keys())
def test_two_columns_over_one_source(source):
    """Estimators clone their columns, each for itself."""
    assert same(source, clone(source))
    pair = [fc.indicator_column(source), fc.embedding_column(clone(source), 2)]
    for columns in (fc.FeatureColumns(pair), clone(fc.FeatureColumns(pair))):
        assert source.encoded_key in columns.fit(PAIRS).encode(PAIRS)


def test_shared_tables_of_cloned_columns():
    for vocabulary in LISTS.values():
        keys = [
            listed(vocabulary),
            fc.weighted_categorical_column(listed(vocabulary), "n"),
        ]
        columns = clone(fc.FeatureColumns(fc.shared_embeddings(keys, 2)))
        assert len(columns.fit(PAIRS).encode(PAIRS)) == 3
