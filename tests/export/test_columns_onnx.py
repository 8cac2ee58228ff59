# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime encodes raw columns exactly as NumPy does."""

import numpy as np
import pandas as pd
import pytest

from skest import feature_columns as fc
from skest.exceptions import ExportError
from skest.export.onnx.graph import Graph
from skest.export.onnx.inputs import Inputs
from skest.feature_columns import categorical_column_with_hash_bucket as hashed
from skest.feature_columns import categorical_column_with_identity as identity
from skest.feature_columns import (
    categorical_column_with_vocabulary_file as vocabulary_file,
)
from skest.feature_columns import categorical_column_with_vocabulary_list as vocabulary
from skest.feature_columns import parsed_numeric_column as parsed
from tests.export._raw import INT64, raw_columns

pytest.importorskip("onnxruntime")
from tests.export._running import EncodedInOnnx

WORDS = ["a", "é", "e\u0301", "\0", "a\0b", "\U0001d518", "x" * 300]
EDGES = [-1, 0, 0.7]
filled = fc.numeric_column("float", default_value=0.7)

CATEGORICAL = {
    "vocabulary": vocabulary("string", WORDS),
    "vocabulary, learned": vocabulary("string", max_categories=5),
    "vocabulary, default": vocabulary("string", WORDS, default_value=1),
    "vocabulary, buckets": vocabulary("string", WORDS, num_oov_buckets=5),
    "vocabulary, missing": vocabulary("string", WORDS, missing_bucket=True),
    "vocabulary, rare and missing": vocabulary(
        "string", num_oov_buckets=1, min_frequency=10**6, missing_bucket=True
    ),
    "integers, missing": vocabulary("integer", [1, 5], missing_bucket=True),
    "vocabulary of integers": vocabulary("integer", [1, 5, -3, INT64.max, INT64.min]),
    "bag of integers": vocabulary("numbers", [0, 1, 2], num_oov_buckets=3),
    "delimiter": vocabulary("text", ["a", "b"], delimiter="|"),
    "hash": hashed("string", 1000),
    "hash of integers": hashed("integer", 97),
    "hash, delimiter": hashed("text", 11, delimiter="|"),
    "identity, default": identity("integer", 12, default_value=3),
    "cross of strings": fc.crossed_column(["string", "words"], 2**63),
    "cross of integers": fc.crossed_column(
        ["integer", "month"], 50, hash_key=2**64 - 1
    ),
    "cross of columns": fc.crossed_column(
        [vocabulary("string", WORDS), "numbers", fc.bucketized_column(filled, EDGES)],
        77,
    ),
    "cross of bags with ids": fc.crossed_column(
        [vocabulary("words", WORDS), identity("numbers", 9, 1)], 2**40
    ),
    "cross of a cross": fc.crossed_column(
        [fc.crossed_column(["string", "month"], 7), "integer"], 10
    ),
    "cross of elements": fc.crossed_column(
        [fc.bucketized_column(fc.numeric_column("vector", 3), EDGES), "words"], 99
    ),
    "buckets": fc.bucketized_column(fc.numeric_column("float"), EDGES),
    "many buckets": fc.bucketized_column(
        fc.numeric_column("float"), np.linspace(-3, 3, 1100).tolist()
    ),
    "buckets of elements": fc.bucketized_column(fc.numeric_column("vector", 3), EDGES),
    "buckets of integers": fc.bucketized_column(
        fc.numeric_column("month", dtype="int32"), [1.5, 7]
    ),
    "buckets of quantiles": fc.bucketized_column(
        fc.numeric_column("float", default_value="mean", normalizer="quantile"),
        "quantiles:7",
    ),
    "buckets of missing integers": fc.bucketized_column(
        fc.numeric_column("month", dtype="int64", default_value=3), [3]
    ),
}
OTHERS = {
    "cells of two axes": fc.numeric_column("matrix", (2, 2), normalizer="standard"),
    "standard": fc.numeric_column(
        "float", default_value="mean", normalizer="standard", indicate_missing=True
    ),
    "auto": fc.numeric_column("float", default_value="mean", normalizer="auto"),
    "minmax": fc.numeric_column(
        "float", default_value=0.5, normalizer="minmax", dtype="float64"
    ),
    "robust, filled": fc.numeric_column(
        "float", default_value="mean", normalizer="robust", indicate_missing=True
    ),
    "quantile": fc.numeric_column("vector", 3, normalizer="quantile"),
    "quantile, filled": fc.numeric_column(
        "float", default_value=0.0, normalizer="quantile", indicate_missing="auto"
    ),
    "formula": fc.numeric_column("vector", 3, normalizer=lambda x: (x - 3) / 2 * x + 1),
    "formula of two axes": fc.numeric_column("matrix", (2, 2), normalizer=np.square),
    "bins": fc.piecewise_linear_column(fc.numeric_column("float"), "distinct:5"),
    "bins, filled": fc.piecewise_linear_column(filled, EDGES, encoding="hat"),
    "bins of elements": fc.piecewise_linear_column(
        fc.numeric_column("matrix", (2, 2), normalizer="standard"), "quantiles:3"
    ),
    "bins of integers": fc.piecewise_linear_column(
        fc.numeric_column("month", dtype="int32"), [1.5, 4, 7.25], encoding="onehot"
    ),
    "many bins": fc.piecewise_linear_column(
        fc.numeric_column("vector", 3, dtype="float64"), np.arange(-99, 99, 1.5)
    ),
    "integers, filled": fc.numeric_column("month", dtype="int32", default_value=4),
    "weighted": fc.weighted_categorical_column(vocabulary("words", WORDS), "weights"),
    "weighted by integers": fc.weighted_categorical_column(
        hashed("string", 9), "month", dtype="int32"
    ),
    "weighted buckets": fc.weighted_categorical_column(
        fc.bucketized_column(fc.numeric_column("vector", 3), EDGES), "vector"
    ),
    "embedding": fc.embedding_column(hashed("words", 9), 2),
    "sequence": fc.sequence_numeric_column("steps"),
    "sequence of ids": fc.indicator_column(
        fc.sequence_categorical_column_with_identity("month", 12)
    ),
    "sequence of hashes": fc.indicator_column(
        fc.sequence_categorical_column_with_hash_bucket("text", 12, delimiter="|")
    ),
}
ALL = CATEGORICAL | OTHERS


def some_rows(columns, X, n_rows):
    keys = [key for column in columns for key in column.feature_keys]
    return {key: X[key][:n_rows] for key in keys}


def assert_same(columns, X, **options):
    """Compare many rows, one and two; and let ONNX Runtime encode none."""
    columns = list(columns)
    fitted = fc.FeatureColumns(columns).fit(some_rows(columns, X, None))
    in_onnx = EncodedInOnnx(fitted, some_rows(columns, X, None), **options)
    for n_rows in (None, 1, 2):
        rows = some_rows(columns, X, n_rows)
        expected, found = fitted.encode(rows), in_onnx(rows)
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            width = values.shape[1:2]  # steps that no row has may stay in the graph
            cut = found[key][:, : width[0]] if width else found[key]
            np.testing.assert_array_equal(cut, values.numpy(), err_msg=key)
            assert found[key].dtype == values.numpy().dtype
    none = {
        spec.name: np.array([cell_without_values(spec)])[:0] for spec in in_onnx.inputs
    }
    for key, values in in_onnx.run(none).items():
        assert values.shape[0] == 0
        assert values.ndim == fitted.encode(rows)[key].ndim


def cell_without_values(spec):
    """A cell without values."""
    dtype = object if spec.dtype == "string" else spec.dtype
    return np.full([size or 1 for size in spec.shape[1:]], spec.missing or 0, dtype)


@pytest.mark.parametrize("column", ALL.values(), ids=ALL)
def test_encodes_as_numpy(column):
    assert_same([column], raw_columns(300))


@pytest.mark.parametrize("normalizer", [None, "standard", "quantile"])
def test_elements_have_default_values_of_their_own(normalizer):
    vectors = raw_columns(40)["vector"].copy()  # tests share the table
    vectors[::3, 0] = vectors[::2, 2] = np.nan
    column = fc.numeric_column("vector", 3, [0.5, 1.0, -2.0], normalizer=normalizer)
    assert_same([column], {"vector": vectors})


def test_the_least_integer_is_missing_where_minus_one_is_a_value():
    columns = [fc.crossed_column(["integer", "month"], 100), vocabulary("integer", [1])]
    X = {"integer": pd.Series([None, -1, 1], dtype="Int64"), "month": np.arange(3)}
    in_onnx = EncodedInOnnx(columns, X)
    assert in_onnx.inputs[0].missing == INT64.min
    fitted = fc.FeatureColumns(columns).fit(X)
    for key, values in in_onnx(X).items():
        assert values.tolist() == fitted.encode(X)[key].tolist()
    assert in_onnx(X)["integer_X_month_ids"][0, 0] == -1
    assert in_onnx(X)["integer_X_month_ids"][1, 0] >= 0


def test_integers_that_are_numbers_too_come_as_floats():
    month = fc.indicator_column(identity("month", 12))
    columns = [month, fc.numeric_column("month", default_value="mean")]
    X = pd.DataFrame({"month": [1, None, 11]})
    in_onnx = EncodedInOnnx(fc.FeatureColumns(columns).fit(X), X)
    assert in_onnx.inputs[0].dtype == "float64"
    assert in_onnx(X)["month_ids"].tolist() == [[1], [-1], [11]]
    assert in_onnx(X)["month"].tolist() == [[1], [6], [11]]


def test_a_file_and_a_sequence_of_words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\né\n", encoding="utf-8")
    X = raw_columns(50)
    assert_same([vocabulary_file("string", path, num_oov_buckets=2)], X)
    sequence = fc.sequence_categorical_column_with_vocabulary_list("month", [1, 2, 3])
    assert_same([fc.embedding_column(sequence, 2)], X)


def test_dates():
    """Every part of dates of any year, before 1970 as well, and of missing ones."""
    rng = np.random.default_rng(0)
    times = rng.integers(-(2**55), 2**57, 3000).view("datetime64[us]")
    days = np.arange("1896-01-01", "1904-03-02", 7, "datetime64[D]").astype(times.dtype)
    leap = np.arange("1999-12-28", "2001-01-04", dtype="datetime64[D]")
    never = np.array(["NaT"] * 9, times.dtype)
    X = {"t": np.concatenate([times, days, leap.astype(times.dtype), never])}
    parts = ("seconds", "month", "weekday", "hour", "day_of_year")
    assert_same([parsed("t", part, default_value=-1) for part in parts], X)
    buckets = fc.bucketized_column(parsed("t", "month"), [3.0, 6.0])
    assert_same([buckets, fc.periodic_column(parsed("t", "hour", default_value=0))], X)
    with pytest.raises(ExportError, match="'t' is read as dates and as something else"):
        EncodedInOnnx([buckets, vocabulary("t", ["x"])], X)


def test_steps_of_several_numbers():
    cells = np.random.default_rng(0).normal(size=(4, 3, 2))
    cells[0, 2:] = cells[1] = np.nan
    for shape, X in (((2,), cells), ((2, 1), cells[..., None])):
        assert_same([fc.sequence_numeric_column("steps", shape)], {"steps": X})


class _Own(fc.NumericColumn):
    pass


def test_refuses_a_column_of_the_users():
    with pytest.raises(ExportError, match="'x' is a _Own, which cannot be exported"):
        EncodedInOnnx([_Own("x")], {"x": np.zeros(2)})


@pytest.mark.parametrize(
    ("normalizer", "message"),
    [
        (lambda x: np.where(x > 0, x, 0), "no operation"),
        (lambda x: x if x.sum() > 0 else -x, "'x' cannot be exported"),
        (lambda x: np.zeros(x.shape), "'x' cannot be exported"),
        (np.arcsin, "no operation numpy.arcsin"),
    ],
)
def test_refuses_a_normalizer_that_is_no_formula(normalizer, message):
    column = fc.numeric_column("x", normalizer=normalizer)
    with pytest.raises(ExportError, match=message):
        EncodedInOnnx([column], {"x": np.zeros(2)})


def test_formulas_of_numpy_are_traced():
    def formula(x):
        for function in (np.log1p, np.exp, np.expm1, np.sqrt, np.tanh, np.log2):
            x = function(abs(np.sign(x) * x) + 1) ** 2 / 2.0 - np.maximum(x, 0)
        return x

    column = fc.numeric_column("x", normalizer=formula, dtype="float64")
    X = {"x": np.random.default_rng(0).normal(size=50)}
    found = EncodedInOnnx([column], X, dtype="float64")(X)["x"]
    np.testing.assert_allclose(found, column.encode(X)["x"], rtol=1e-4)


def test_inputs_must_have_different_names():
    columns = [fc.numeric_column(0), fc.numeric_column("0")]
    with pytest.raises(ExportError, match="Two inputs would have the name '0'"):
        Inputs(Graph("g"), columns, np.float32)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([fc.crossed_column(["a", "b"], 9)], "not known whether column 'a'"),
        ([fc.numeric_column("a"), vocabulary("a", ["x"])], "as numbers and as strings"),
        ([vocabulary("a", ["x"]), vocabulary("a", [1])], "as strings by one"),
        (
            [fc.numeric_column("a"), fc.numeric_column("a", 2)],
            r"shapes \(None, 1\) and",
        ),
        (
            [fc.numeric_column("a", (2, 1)), fc.numeric_column("a", 2)],
            "which one input",
        ),
    ],
)
def test_refuses_raw_columns_that_are_no_single_input(columns, message):
    with pytest.raises(ExportError, match=message):
        Inputs(Graph("g"), columns, np.float32)
