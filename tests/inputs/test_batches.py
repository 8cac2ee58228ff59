# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from skest.inputs import ArrayDataset
from skest.inputs.batches import Source, pinned, tensor_batches

CPU = torch.device("cpu")
FLOATS = np.arange(5, dtype=np.float64) / 2
COLUMNS = {"x": FLOATS, "i": np.arange(5), "word": np.array(list("abcde"))}
LABELS = np.arange(5) % 2


def make(data, encode=None, encode_labels=None, dtype=torch.float32, with_labels=True):
    batches = tensor_batches(
        Source(data), encode, encode_labels, CPU, dtype, with_labels
    )
    return list(batches)


# Source


# Types


def test_floats_follow_the_network_and_all_else_stays():
    for dtype in [torch.float32, torch.float64]:
        for as_table in [True, False]:
            table = ArrayDataset(COLUMNS, LABELS)
            ((features, labels),) = make(
                table if as_table else list(table), dtype=dtype
            )
            assert features["x"].dtype == dtype
            assert features["i"].dtype == labels.dtype == torch.int64
            assert isinstance(features["word"], np.ndarray)
            assert features["word"].tolist() == list("abcde")
            assert features["x"].tolist() == FLOATS.tolist()


def test_types_of_arrays():
    for array, dtype in [
        (np.ones(2, np.float16), torch.float32),
        (np.ones(2, ">f8"), torch.float32),
        (np.ones(2, ">i4"), torch.int32),
        (np.ones(2, np.uint8), torch.uint8),
        (np.ones(2, bool), torch.bool),
        (pd.Series([1.0, 2.0]), torch.float32),
        (pl.Series([1, 2]), torch.int64),
        (torch.ones(2, dtype=torch.float64), torch.float64),  # is one already
    ]:
        ((features, _),) = make([array])
        assert features.dtype == dtype


# Encoding


@pytest.mark.parametrize("as_table", [True, False])
def test_encoders(as_table):
    calls = []

    def encode(features):
        calls.append(len(features["x"]))
        return {"double": torch.as_tensor(2 * features["x"])}

    table = ArrayDataset(COLUMNS, LABELS, batch_size=2, num_epochs=2)
    batches = make(
        table if as_table else list(table),
        encode,
        lambda labels: torch.as_tensor(labels + 1),
    )
    # A table is encoded once, other data batch by batch.
    assert calls == ([5] if as_table else [2, 2, 1, 2, 2, 1])
    doubled = torch.cat([features["double"] for features, _ in batches])
    assert doubled.tolist() == 2 * (2 * FLOATS).tolist()
    assert torch.cat([labels for _, labels in batches]).tolist() == 2 * [1, 2, 1, 2, 1]


def test_shuffled_tables_are_cut_as_their_rows_are():
    table = ArrayDataset(
        COLUMNS, np.arange(5), batch_size=2, shuffle=True, num_epochs=3
    )
    for features, labels in make(table):
        assert features["i"].tolist() == labels.tolist()
        assert (features["x"] * 2).tolist() == labels.tolist()
        assert "".join(features["word"]) == "".join("abcde"[i] for i in labels)


@pytest.mark.parametrize(("batch_size", "together"), [(16, 1), (7, 2**12), (16, 2**20)])
def test_batches_taken_together_are_those_taken_alone(
    monkeypatch, batch_size, together
):
    monkeypatch.setattr("skest.inputs.batches._GATHERED_BYTES", together)
    n_rows = 50
    x = torch.arange(n_rows * 3.0).reshape(n_rows, 3)
    ids = torch.arange(n_rows)[:, None]
    words = np.array([f"word {i}" for i in range(n_rows)])
    encoded = {"part": {"x": x, "ids": ids}, "other": {"ids": ids}, "none": {}}
    data = ArrayDataset(
        {"words": words},
        words,
        batch_size=batch_size,
        shuffle=True,
        seed=0,
        num_epochs=2,
    )
    expected = list(data.index_batches())
    batches = make(data, lambda features: encoded, lambda labels: labels)
    assert len(batches) == len(expected)
    for (features, labels), rows in zip(batches, expected, strict=True):
        assert torch.equal(features["part"]["x"], x[rows])
        assert torch.equal(features["part"]["ids"], ids[rows])
        assert features["other"]["ids"] is features["part"]["ids"]
        assert features["none"] == {}
        assert list(labels) == list(words[rows])
        if batch_size % 16 == 0:
            assert features["part"]["x"].data_ptr() % 64 == 0


def test_labels_of_another_length_are_refused():
    source = Source([(torch.zeros(8, 2), torch.zeros(5))])
    with pytest.raises(ValueError, match="same number of rows; got 8 and 5"):
        next(tensor_batches(source, None, None, CPU, torch.float32))


def test_a_table_is_encoded_piece_by_piece_when_batches_are_asked_for():
    seen = []

    def encode(features):
        seen.append(len(features["x"]))
        return {"x": torch.from_numpy(features["x"])}

    source = Source(ArrayDataset({"x": np.arange(10.0)}, batch_size=2))
    batches = tensor_batches(source, encode, None, CPU, torch.float64, rows_at_once=5)
    assert seen == []
    found = []
    for features, _ in batches:
        found += features["x"].tolist()
        assert sum(seen) - len(found) < 4
    assert found == list(range(10))
    assert seen == [4, 4, 2]


# Pinned memory


@pytest.fixture
def no_pinned_memory(monkeypatch):
    """Let other memory be that which only a machine with a GPU has."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda leaf, pin_memory: empty_like(leaf))


@pytest.mark.usefixtures("no_pinned_memory")
@pytest.mark.parametrize(
    ("leaf", "n_bytes"),
    [
        (torch.arange(6.0).view(2, 3).t(), 24),
        (torch.arange(3000.0).view(3, 1000)[:, 0], 12),
        (torch.ones(1).expand(5), 20),
        (torch.empty(0, 2), 0),
    ],
    ids=["transposed", "column", "repeated", "empty"],
)
def test_all_leaves_are_pinned_in_no_more_memory_than_they_need(leaf, n_bytes):
    copy = pinned(leaf)
    assert torch.equal(copy, leaf)
    assert copy.untyped_storage().nbytes() == n_bytes
