# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import pytest
import torch

from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    LinearFeatures,
    SequenceFeatures,
    embedding_column,
    indicator_column,
    numeric_column,
    sequence_categorical_column_with_identity,
    sequence_numeric_column,
)

IDENTITY = sequence_categorical_column_with_identity("k", 3)
X = {"k": [[0, 2], [], [1, -1, 1]], "x": [[0.5, 1.5], [], [1.0, 2.0, 3.0]]}


def columns() -> FeatureColumns:
    return FeatureColumns(
        [
            sequence_numeric_column("x"),
            indicator_column(IDENTITY),
            embedding_column(IDENTITY, 2, max_norm=0.1),
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_has_a_vector(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    module = SequenceFeatures(columns(), dtype, generator)
    steps, lengths = module(columns().encode(X, dtype))
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


def test_steps_that_no_sequence_has_are_cut_off() -> None:
    module = SequenceFeatures(columns())
    encoded = {key: value[:2] for key, value in columns().encode(X).items()}
    assert encoded["x"].shape[1] == 3
    assert module(encoded)[0].shape[:2] == (2, 2)
    empty = {key: value[1:2] for key, value in encoded.items()}
    steps, lengths = module(empty)
    assert steps.shape[:2] == (1, 1)
    assert lengths.tolist() == [0]


def test_gradients_of_tables_are_sparse() -> None:
    module = SequenceFeatures([embedding_column(IDENTITY, 2)])
    module(columns().encode(X))[0].sum().backward()
    gradient = module.column_parameters()["k_embedding"].grad
    assert gradient is not None
    assert gradient.is_sparse
    np.testing.assert_array_equal(gradient.to_dense()[:, 0], [1, 2, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DenseFeatures([indicator_column(IDENTITY)]),
            "'k_indicator' is a sequence, which DenseFeatures cannot take.*without 'seq",
        ),
        (
            lambda: DenseFeatures([sequence_numeric_column("x")]),
            "'x' is a sequence, which DenseFeatures cannot take",
        ),
        (
            lambda: LinearFeatures([IDENTITY]),
            "'k' is a sequence, which LinearFeatures cannot take",
        ),
        (
            lambda: SequenceFeatures([numeric_column("x")]),
            "'x' is no sequence, which SequenceFeatures requires.*context column",
        ),
        (
            lambda: SequenceFeatures([IDENTITY]),
            "'k' is categorical .* Wrap it in indicator_column or embedding_column",
        ),
        (lambda: SequenceFeatures([]), "non-empty list of feature columns"),
    ],
)
def test_columns_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
