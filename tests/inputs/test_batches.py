# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from skest.inputs import ArrayDataset
from skest.inputs.batches import Source, tensor_batches

CPU = torch.device("cpu")
FLOATS = np.arange(5, dtype=np.float64) / 2
COLUMNS = {"x": FLOATS, "i": np.arange(5), "word": np.array(list("abcde"))}
LABELS = np.arange(5) % 2


def make(data, encode=None, encode_labels=None, dtype=torch.float32, with_labels=True):
    batches = tensor_batches(
        Source(data), encode, encode_labels, CPU, dtype, with_labels
    )
    return list(batches)


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


@pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_of_a_stream_are_cast_as_arrays_are(given):
    x, z = torch.from_numpy(FLOATS), torch.ones(5, dtype=torch.complex128)
    ((features, labels),) = make([({"x": x.to(given), "z": z}, x)])
    assert features["x"].dtype == labels.dtype == torch.float32
    assert features["x"].tolist() == labels.tolist() == FLOATS.tolist()
    assert features["z"] is z


# Rows


@pytest.mark.parametrize("batch_size", [2, 5])
def test_batches_in_order_are_copies(batch_size):
    x = np.ones((5, 3), np.float32)
    table = ArrayDataset(x, LABELS, batch_size=batch_size, shuffle=False, num_epochs=2)
    for features, _ in make(table):
        features *= 2
    assert (x == 1).all()


@pytest.mark.parametrize("batch_size", [16, 7])
def test_many_columns_are_shuffled_as_a_few_are(batch_size):
    numbers = np.arange(100.0)
    few = {"x": numbers[:, None], "i": np.arange(100)[:, None], "flat": numbers}
    many = few | {f"x{i}": (numbers + i)[:, None] for i in range(40)}
    options = {"batch_size": batch_size, "shuffle": True, "seed": 3, "num_epochs": 2}
    batches = make(ArrayDataset(many, numbers, **options))
    expected = make(ArrayDataset(few, numbers, **options))
    for (found, y), (features, labels) in zip(batches, expected, strict=True):
        assert list(found) == list(many)
        torch.testing.assert_close(
            (y, *map(found.get, few)), (labels, *features.values())
        )
        assert found["x39"].shape == (len(y), 1)
        assert found["x39"].flatten().tolist() == (labels + 39).tolist()


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


def test_labels_of_another_length_are_refused():
    source = Source([(torch.zeros(8, 2), torch.zeros(5))])
    with pytest.raises(ValueError, match="same number of rows; got 8 and 5"):
        next(tensor_batches(source, None, None, CPU, torch.float32))
