# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.inputs import ArrayDataset

NUMBERS = np.arange(5)
WORDS = np.array(["a", "b", "c", "d", "e"])
COLUMNS = {"x": NUMBERS, "word": WORDS}
TABLES = {
    "array": NUMBERS,
    "matrix": np.arange(10).reshape(5, 2),
    "dict of arrays": COLUMNS,
    "dict of lists": {name: value.tolist() for name, value in COLUMNS.items()},
    "dict of Series": {
        name: pd.Series(v, index=list("pqrst")) for name, v in COLUMNS.items()
    },
    "DataFrame": pd.DataFrame(COLUMNS, index=[4, 3, 2, 1, 0]),
    "polars": pl.DataFrame(COLUMNS),
    "dict of polars Series": {name: pl.Series(v) for name, v in COLUMNS.items()},
    "tensor": torch.arange(5),
    "nested": {"a": COLUMNS, "b": NUMBERS},
    "sparse": scipy.sparse.csr_array(np.eye(5)),
}


def as_lists(data):
    """Bring all kinds of tables to nested lists."""
    if isinstance(data, dict):
        return {name: as_lists(value) for name, value in data.items()}
    if isinstance(data, pl.DataFrame):
        return as_lists(data.to_dict(as_series=True))
    if isinstance(data, pd.DataFrame):
        return as_lists({name: data[name] for name in data.columns})
    if scipy.sparse.issparse(data):
        data = data.toarray()
    return list(
        data.to_list() if isinstance(data, pl.Series) else np.asarray(data).tolist()
    )


def rows_of(data, rows):
    if isinstance(data, dict):
        return {name: rows_of(value, rows) for name, value in data.items()}
    return [data[row] for row in rows]


def test_rows_are_taken_from_every_kind_of_table():
    for kind in TABLES:
        for rows in [slice(1, 3), np.array([4, 0, 2]), slice(4, 9)]:
            table = TABLES[kind]
            data = ArrayDataset(table, NUMBERS)
            features, labels = data.take(rows)
            expected = np.arange(5)[rows].tolist()
            assert as_lists(features) == rows_of(as_lists(table), expected)
            assert labels.tolist() == expected
            assert type(features) is type(data.features)


def orders(n_epochs, **options):
    data = ArrayDataset(np.arange(30), shuffle=True, num_epochs=n_epochs, **options)
    rows = np.concatenate([data.take(rows)[0] for rows in data.index_batches()])
    return rows.reshape(n_epochs, 30).tolist()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**40), batch_size=st.integers(1, 40))
def test_shuffled_epochs_are_seeded_permutations(seed, batch_size):
    first, second, third = orders(3, seed=seed, batch_size=batch_size)
    assert sorted(first) == sorted(second) == sorted(third) == list(range(30))
    assert first != second != third != first
    # The order does not depend on the size of batches, and epochs are numbered.
    assert orders(2, seed=seed) == [first, second]
    assert orders(1, seed=seed + 1) != [first]


def test_without_a_seed_every_dataset_has_its_own_order_and_keeps_it():
    assert orders(2) != orders(2)
    data = ArrayDataset(np.arange(30), shuffle=True, batch_size=30)
    assert next(iter(data)).tolist() == next(iter(data)).tolist()


def test_wrong_arguments_are_refused():
    for arguments, error, message in [
        (
            {"features": {"a": [1, 2], "b": [1]}},
            ValueError,
            "columns of 'features'.*'a': 2",
        ),
        ({"features": {}}, ValueError, "'features' is an empty dictionary"),
        ({"features": np.zeros((0, 3))}, ValueError, "'features' has 0 rows"),
        ({"features": 3}, TypeError, "'features' must be an array.*ndarray"),
        ({"labels": [1, 2]}, ValueError, "same number of rows; got 5 and 2"),
        ({"labels": {"a": [1], "b": [1, 2]}}, ValueError, "columns of 'labels'"),
        ({"batch_size": 0}, ValueError, "'batch_size' of .* .*at least 1; got 0"),
        ({"num_epochs": 0}, ValueError, "'num_epochs' .*at least 1; got 0"),
    ]:
        with pytest.raises(error, match=message):
            ArrayDataset(**{"features": NUMBERS, **arguments})


def test_sampling_weight_draws_rows_in_proportion_in_full_batches():
    weight = np.array([0.0, 3.0, 1.0, 0.0])
    data = ArrayDataset(
        np.arange(4), batch_size=3, sampling_weight=weight, num_epochs=2000, seed=0
    )
    assert data.steps_per_epoch == 2
    assert data.rows_per_epoch == 6
    batches = list(data.index_batches())
    assert {len(rows) for rows in batches} == {3}
    counts = np.bincount(np.concatenate(batches), minlength=4)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert counts[1] / counts.sum() == pytest.approx(0.75, abs=0.01)


def test_wrong_sampling_weight():
    for weight, message in [
        ([1.0, 2.0], r"'sampling_weight' must have the shape \(3,\) of the rows"),
        ([0.0, 0.0, 0.0], "not all zero"),
        ([1.0, -1.0, 1.0], "finite and not negative"),
        ([1.0, np.nan, 1.0], "finite and not negative"),
    ]:
        with pytest.raises(ValueError, match=message):
            ArrayDataset(np.arange(3), sampling_weight=weight)


def test_resuming_at_every_position_equals_the_uninterrupted_run():
    for num_epochs in [1, 3]:
        for options in [{}, {"shuffle": True}, {"sampling_weight": "rows"}]:
            if "sampling_weight" in options:
                options = {"sampling_weight": np.arange(1, 8)}
            options |= {"batch_size": 3, "num_epochs": num_epochs}
            x = np.arange(7)
            first = ArrayDataset(x, **options)  # its seed is from the operating system
            batches = [batch.tolist() for batch in first]
            for n in range(3 * num_epochs + 2):
                again = ArrayDataset(x, **options).resumed(n, first.seeds)
                assert [batch.tolist() for batch in again] == batches[n:]
                assert again.first_batch()[0].tolist() == [0, 1, 2]
            twice = (
                ArrayDataset(x, **options)
                .resumed(1, first.seeds)
                .resumed(1, first.seeds)
            )
            assert [batch.tolist() for batch in twice] == batches[2:]
            assert [batch.tolist() for batch in first] == batches
