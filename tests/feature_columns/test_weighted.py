# SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skest import feature_columns as fc

WORD = fc.categorical_column_with_vocabulary_list("word", ["cat", "dog"])
COLUMN = fc.weighted_categorical_column(WORD, "n")
LISTS = {"word": [["cat", "dog", "cat"], [], ["dog"]], "n": [[1, 2, 0.5], [], [3]]}
IDS, WEIGHTS = [[0, 1, 0], [-1, -1, -1], [1, -1, -1]], [[1, 2, 0.5], [0] * 3, [3, 0, 0]]
SUMS = [[1.5, 2], [0, 0], [0, 3]]


def padded(fill=np.nan):
    """`LISTS` as arrays; where there is no value, any weight is fine."""
    words = [["cat", "dog", "cat"], ["", "", ""], ["dog", "", ""]]
    weights = [[1, 2, 0.5], [fill] * 3, [3, fill, fill]]
    return {"word": np.array(words, object), "n": np.array(weights)}


def test_forms_of_input():
    for X in [
        LISTS,
        pd.DataFrame(LISTS),
        pl.DataFrame(LISTS, strict=False),
        padded(),
        padded(0.0),
        padded(np.inf),
        {**LISTS, "n": padded()["n"]},
        {**padded(), "n": LISTS["n"]},
    ]:
        encoded = COLUMN.encode(X)
        assert list(encoded) == [COLUMN.encoded_key, COLUMN.weight_key]
        assert_array_equal(encoded["word_weighted_by_n_ids"], IDS)
        assert_array_equal(encoded["word_weighted_by_n_weights"], WEIGHTS)
        assert encoded[COLUMN.weight_key].dtype == np.float32
        assert_array_equal(COLUMN.transform(X).toarray(), SUMS)


def test_one_value_in_a_cell():
    X = pd.DataFrame({"word": ["cat", None, "cow"], "n": [0.5, None, 7.0]})
    encoded = COLUMN.encode(X)
    assert_array_equal(encoded[COLUMN.encoded_key], [[0], [-1], [-1]])
    assert_array_equal(encoded[COLUMN.weight_key], [[0.5], [0], [0]])


def test_vocabulary_is_learned_inside():
    column = fc.weighted_categorical_column(
        fc.categorical_column_with_vocabulary_list("word"), "n"
    )
    with pytest.raises(NotFittedError, match="'word' has not learned its vocabulary"):
        column.encode(LISTS)
    assert_array_equal(column.fit(LISTS).transform(LISTS).toarray(), SUMS)
    copy = pickle.loads(pickle.dumps(column))
    assert_array_equal(copy.transform(LISTS).toarray(), SUMS)
    assert clone(column).get_params()["categorical_column__key"] == "word"


def reference(table, ids, weights, combiner):
    """Row by row, as the combiners are defined."""
    rows = []
    for row_ids, row_weights in zip(ids, weights, strict=True):
        kept = row_ids >= 0
        if combiner != "sum":
            kept &= row_weights > 0
        w, e = row_weights[kept], table[row_ids[kept]]
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        rows.append(w @ e / divisor if kept.any() else np.zeros(table.shape[1]))
    return np.array(rows)


@given(
    cells=st.lists(
        st.lists(
            st.tuples(st.integers(-1, 3), st.floats(-1e6, 1e6, width=32)),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    ),
    combiner=st.sampled_from(["sum", "mean", "sqrtn"]),
)
def test_combiners(cells, combiner):
    values = np.array(cells)
    ids, weights = values[..., 0].astype(int), values[..., 1]
    column = fc.weighted_categorical_column(
        fc.categorical_column_with_identity("k", 4), "w", "float64"
    )
    columns = fc.FeatureColumns(
        [fc.embedding_column(column, 2, combiner), fc.indicator_column(column)]
    )
    encoded = columns.encode({"k": ids, "w": weights}, torch.float64)
    table = np.array([[1, -2], [3, 0.5], [0, 7], [-5, 11.0]])
    dense = fc.DenseFeatures(columns, torch.float64)
    linear = fc.LinearFeatures([column], 2, combiner, torch.float64)
    for module in (dense, linear):
        (weight,) = module.column_parameters().values()
        weight.data = torch.tensor(table)
    expected = reference(table, ids, weights, combiner)
    output = dense(encoded).detach().numpy()
    close = {"rtol": 1e-12, "atol": 1e-7 if combiner == "sum" else 1e-12}
    assert_allclose(output[:, :2], expected, **close)
    assert_allclose(linear(encoded).detach().numpy(), expected, **close)
    assert_allclose(output[:, 2:], reference(np.eye(4), ids, weights, "sum"), atol=1e-7)
    embedded = columns.active[0]
    embedded.weights_ = table
    assert_allclose(embedded.transform({"k": ids, "w": weights}), expected, **close)


def test_weights_refused():
    for X, message in [
        (
            {"word": ["cat", "dog"], "n": [1, None]},
            r"'n' has no weight \(NaN or None\) in row 1 for value 0 of 'word'. Give it",
        ),
        ({"word": ["cat"], "n": [-np.inf]}, "'n' holds -inf; infinity"),
        ({"word": ["cat"], "n": [1e39]}, r"'n' holds 1e\+39, which is infinity"),
        ({"word": ["cat"], "n": ["1"]}, "'n' must hold numbers; got the string '1'"),
        (
            {"word": [["cat"], ["dog", "cat"]], "n": [[1], [1]]},
            "'n' must have a weight for each .* column 'word'; in row 1 it has 1 for 2 val",
        ),
        (
            {"word": [["cat", "dog"], ["dog", ""]], "n": [1, 2]},
            r"'n' must have a weight for each value of 'word', in the shape \(2, 2\); got "
            r"\(2, 1\)",
        ),
    ]:
        for refuse in (COLUMN.encode, COLUMN.transform, clone(COLUMN).fit):
            with pytest.raises(ValueError, match=message):
                refuse(X)


def test_parameters_refused():
    for arguments, error, message in [
        (("word", "n"), TypeError, "'categorical_column' of a weighted .* got 'word'"),
        (
            (fc.sequence_categorical_column_with_identity("k", 3), "n"),
            ValueError,
            "must not be the sequence column 'k'",
        ),
        ((COLUMN, "n"), ValueError, "not be the weighted column 'word_weighted_by_n'"),
        (
            (WORD, 1.5),
            TypeError,
            "'weight_feature_key' of weighted column 'word_weighted_by_1.5' must be the",
        ),
        ((WORD, "n", "float16"), ValueError, "'dtype' .*'n' must be .* of .*'float16'"),
    ]:
        with pytest.raises(error, match=message):
            fc.weighted_categorical_column(*arguments)
