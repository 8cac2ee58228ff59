# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone

from skest import feature_columns as fc

NUMBERS = [[1.0, 2.0, 3.0], [], None, [4.0]]
PADDED = np.array([[1, 2, 3], [np.nan] * 3, [np.nan] * 3, [4, np.nan, np.nan]])


def test_numbers_of_every_form_give_the_same():
    for X in [
        pd.DataFrame({"x": NUMBERS}),
        pd.DataFrame({"x": [[1, 2, 3], [], None, [4]]}),
        pl.DataFrame({"x": NUMBERS}),
        {"x": NUMBERS},
        {"x": PADDED},
        {"x": np.hstack([PADDED, np.full((4, 2), np.nan)])},
        PADDED,
    ]:
        encoded = fc.sequence_numeric_column("x").encode(X)
        assert encoded["x"].dtype == np.float32
        assert encoded["x"][:, :, 0].tolist() == [
            [1, 2, 3],
            [0] * 3,
            [0] * 3,
            [4, 0, 0],
        ]
        assert encoded["x_length"].tolist() == [3, 0, 0, 1]


def test_steps_of_several_numbers():
    column = fc.sequence_numeric_column("x", shape=2)
    lists = column.encode({"x": [[[1, 2], [3, 4]], [[5, 6]]]})
    array = np.array([[[1, 2], [3, 4]], [[5, 6], [np.nan, np.nan]]])
    assert lists["x"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    for key, values in column.encode({"x": array}).items():
        np.testing.assert_array_equal(values, lists[key])
    assert column.get_feature_names_out().tolist() == ["x_0", "x_1"]


def test_statistics_are_those_of_all_steps():
    column = fc.sequence_numeric_column("x", normalizer="standard")
    column.fit({"x": [[1.0, 2.0], [], [6.0]]}, sample_weight=[1, 1, 2])
    steps, weights = [1.0, 2.0, 6.0], [1, 1, 2]
    mean = np.average(steps, weights=weights)
    deviation = np.sqrt(np.average((steps - mean) ** 2, weights=weights))
    np.testing.assert_allclose(column.center_, [mean])
    values = column.encode({"x": [[2.0]]})["x"]
    np.testing.assert_allclose(values, [[[(2 - mean) / deviation]]], rtol=1e-6)


def test_gaps_inside_a_sequence():
    X = {"x": [[1.0, None, 3.0], [5.0, np.nan]]}
    column = fc.sequence_numeric_column(
        "x", default_value="mean", indicate_missing="auto"
    )
    encoded = column.fit(X).encode(X)
    assert encoded["x"].tolist() == [[[1, 0], [3, 1], [3, 0]], [[5, 0], [3, 1], [0, 0]]]
    assert encoded["x_length"].tolist() == [3, 2]
    assert column.fit(X, sample_weight=[0, 1]).size == 2
    assert column.fit({"x": [[1.0, None], [5.0]]}, sample_weight=[0, 1]).size == 1


def test_every_element_of_a_step_may_have_its_default_value():
    for default in [[1.0, 2.0], np.array([1.0, 2.0])]:
        column = fc.sequence_numeric_column("x", 2, default)
        encoded = column.encode({"x": np.array([[[3.0, np.nan], [np.nan, 4.0]]])})
        assert encoded["x"].tolist() == [[[3, 2], [1, 4]]]


VOCABULARY = fc.sequence_categorical_column_with_vocabulary_list("c", ["a", "b"])


def test_categories_of_lists_keep_their_length():
    X = {"c": [["b", "z", ""], ["a"], []]}
    encoded = VOCABULARY.encode(X)
    assert encoded["c_ids"].tolist() == [[1, -1, -1], [0, -1, -1], [-1, -1, -1]]
    assert encoded["c_ids_length"].tolist() == [3, 1, 0]


def test_categories_of_an_array_end_at_the_last_value():
    X = {"c": np.array([["b", "", "z", ""], ["a", "", "", ""], [""] * 4])}
    encoded = VOCABULARY.encode(X)
    assert encoded["c_ids"].tolist() == [[1, -1, -1], [0, -1, -1], [-1, -1, -1]]
    assert encoded["c_ids_length"].tolist() == [3, 1, 0]


@pytest.mark.parametrize(
    "wrap", [fc.indicator_column, lambda c: fc.embedding_column(c, 2)]
)
def test_wrapped_categories(wrap):
    X = {"c": [[1, 3], [3, 3, 4]]}
    for column in (
        fc.sequence_categorical_column_with_identity("c", 5),
        fc.sequence_categorical_column_with_vocabulary_list("c"),
        fc.sequence_categorical_column_with_hash_bucket("c", 5),
    ):
        columns = fc.FeatureColumns([wrap(column)])
        assert not hasattr(columns.fit(X).columns[0], "categorical_column_")
        encoded = columns.encode(X)
        assert encoded["c_ids"].shape == (2, 3)
        assert encoded["c_ids_length"].tolist() == [2, 3]
        again = clone(columns).fit(X).encode(X)
        assert torch.equal(again["c_ids"], encoded["c_ids"])


def sequence_pair():
    column = fc.sequence_categorical_column_with_vocabulary_list("c", ["a", "b"])
    return column, fc.sequence_numeric_column("x")


def test_lengths_must_agree():
    category, number = sequence_pair()
    columns = fc.FeatureColumns([fc.indicator_column(category), number])
    columns.encode({"c": [["a"], ["b", "a"]], "x": [[1], [2, 3]]})
    message = "in row 1, column 'c_indicator' has 2 steps and column 'x' has 1"
    with pytest.raises(ValueError, match=message):
        columns.encode({"c": [["a"], ["b", "a"]], "x": [[1], [2]]})


def test_bad_cells():
    for column, cells, message in [
        (
            fc.sequence_numeric_column("x"),
            [[1.0, np.nan]],
            "'x' holds NaN.*default_value",
        ),
        (
            fc.sequence_numeric_column("x"),
            np.array([[np.nan, 1.0], [2.0, np.nan]]),
            "'x' holds NaN",
        ),
        (fc.sequence_numeric_column("x"), [[1.0, np.inf]], "'x' holds inf"),
        (fc.sequence_numeric_column("x"), [["1"]], "'x' must hold numbers; .* string"),
        (
            fc.sequence_numeric_column("x"),
            [[[1, 2]], [[3, 4]]],
            r"'x' must have shape \(1,\); got \(2,\). Set 'shape'",
        ),
        (
            fc.sequence_numeric_column("x", normalizer="standard"),
            [[], []],
            "All sequences of column 'x' are empty",
        ),
        (
            fc.sequence_categorical_column_with_vocabulary_list("x"),
            [[], []],
            "no value that occurs",
        ),
        (fc.sequence_categorical_column_with_identity("x", 3), [[1, 3]], "'x' holds 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            column.fit({"x": cells})


def test_sequences_are_no_plain_matrix():
    for column in [
        fc.sequence_numeric_column("c"),
        fc.indicator_column(VOCABULARY),
        VOCABULARY,
    ]:
        for transformer in (column, fc.FeatureColumns([column])):
            with pytest.raises(ValueError, match=r"is a .* and cannot .* plain matrix"):
                transformer.transform({"c": np.array([[1.0]])})


def test_bad_parameters():
    for make, error, message in [
        (
            lambda: fc.bucketized_column(fc.sequence_numeric_column("x"), [0.0]),
            TypeError,
            "from numeric_column; got SequenceNumericColumn",
        ),
        (
            lambda: fc.indicator_column(fc.SequenceCategoricalColumn(VOCABULARY)),
            TypeError,
            "'categorical_column' of a SequenceCategoricalColumn must come from",
        ),
        (
            lambda: fc.SequenceCategoricalColumn(
                fc.crossed_column(["a", "b"], 5)
            ).validated(),
            TypeError,
            "'categorical_column' of a SequenceCategoricalColumn must come from",
        ),
    ]:
        with pytest.raises(error, match=message):
            make()


MIXED = pd.DataFrame(
    {
        "event": [["a", "b"], ["c"], []],
        "dose": [[1.5, None], [2.0], []],
        "point": [[[1, 2], [3, 4]], [[5, 6]], []],
        "many": [[f"m{i}" for i in range(12)]] * 3,
        "age": [1.0, None, 3.0],
        "sex": ["f", "m", "f"],
    }
)


def test_inferred_sequences_and_context():
    sequence = fc.infer_feature_columns(MIXED, "sequence")
    names = ["event_indicator", "dose", "point", "many_embedding"]
    assert [column.name for column in sequence.active] == names
    assert sequence.active[2].cell_shape == (2,)
    dose = fc.FeatureColumns([sequence.active[1]]).fit(MIXED).encode(MIXED)["dose"]
    assert dose.shape == (3, 2, 2)
    context = fc.infer_feature_columns(MIXED, "context")
    assert [column.name for column in context.active] == ["age", "sex_indicator"]


def test_inferred_from_arrays():
    (column,) = fc.infer_feature_columns(np.ones((2, 3)), "sequence").active
    assert (column.name, column.length_key) == ("x", "x_length")
    assert fc.infer_feature_columns(np.ones((2, 3)), "context") is None
    codes = {"c": np.array([["a", "b"], ["b", ""]])}
    (column,) = fc.infer_feature_columns(codes, "sequence").active
    assert column.length_key == "c_ids_length"


STEP_IDENTITY = fc.sequence_categorical_column_with_identity("k", 3)
STEPS = {"k": [[0, 2], [], [1, -1, 1]], "x": [[0.5, 1.5], [], [1.0, 2.0, 3.0]]}


def columns():
    return fc.FeatureColumns(
        [
            fc.sequence_numeric_column("x"),
            fc.indicator_column(STEP_IDENTITY),
            fc.embedding_column(STEP_IDENTITY, 2, max_norm=0.1),
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_has_a_vector(dtype):
    generator = torch.Generator().manual_seed(0)
    module = fc.SequenceFeatures(columns(), dtype, generator)
    steps, lengths = module(columns().encode(STEPS, dtype))
    assert lengths.tolist() == [2, 0, 3]
    assert steps.dtype == dtype
    assert steps.shape == (3, 3, module.out_features) == (3, 3, 2 + 3 + 1)
    table = module.column_parameters()["k_embedding"]
    expected = table[1] * (0.1 / table[1].norm())
    torch.testing.assert_close(steps[2, [0, 2], :2], expected.expand(2, 2))
    assert steps[2, :, 2:].tolist() == [[0, 1, 0, 1], [0, 0, 0, 2], [0, 1, 0, 3]]
    assert steps[2, 1, :2].tolist() == [0, 0]
    assert steps[0, :2, 2:].tolist() == [[1, 0, 0, 0.5], [0, 0, 1, 1.5]]
    assert not steps[1].any()
    assert not steps[0, 2].any()


def test_steps_that_no_sequence_has_are_cut_off():
    module = fc.SequenceFeatures(columns())
    encoded = {key: value[:2] for key, value in columns().encode(STEPS).items()}
    assert encoded["x"].shape[1] == 3
    assert module(encoded)[0].shape[:2] == (2, 2)
    empty = {key: value[1:2] for key, value in encoded.items()}
    steps, lengths = module(empty)
    assert steps.shape[:2] == (1, 1)
    assert lengths.tolist() == [0]


def test_columns_refused():
    for make, message in [
        (
            lambda: fc.DenseFeatures([fc.indicator_column(STEP_IDENTITY)]),
            "'k_indicator' is a sequence, which DenseFeatures cannot take.*without 'seq",
        ),
        (lambda: fc.LinearFeatures([STEP_IDENTITY]), "'k' is a sequence, .* take"),
        (
            lambda: fc.SequenceFeatures([fc.numeric_column("x")]),
            "'x' is no sequence, which SequenceFeatures requires.*context column",
        ),
        (
            lambda: fc.SequenceFeatures([STEP_IDENTITY]),
            "'k' is categorical .* Wrap it in indicator_column or embedding_column",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
