# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    LinearFeatures,
    SparseMatrixColumn,
    crossed_column,
    embedding_column,
    indicator_column,
    infer_feature_columns,
    numeric_column,
)

DENSE = np.array([[0, 4.0, 0, 0], [5, -2, 0, 0], [0, 0, 0, 0], [1, 1, 0, 8]])
X = scipy.sparse.csr_array(DENSE)
SCALED = DENSE / [5, 4, 1, 8]


def test_transform_is_sparse_and_scaled():
    column = SparseMatrixColumn().fit(X)
    matrix = column.transform(X)
    assert scipy.sparse.issparse(matrix)
    assert_allclose(matrix.toarray(), SCALED)
    assert column.get_feature_names_out().tolist() == ["x_0", "x_1", "x_2", "x_3"]
    assert_array_equal(column.transform(DENSE).toarray(), matrix.toarray())
    assert_allclose(indicator_column(SparseMatrixColumn()).fit_transform(X), SCALED)


def test_linear_is_a_product():
    columns = FeatureColumns([SparseMatrixColumn()]).fit(X)
    for combiner in ("sum", "mean"):
        linear = LinearFeatures(columns, 3, combiner, torch.float64)
        weights = linear.column_parameters()["x"]
        nn.init.normal_(weights, generator=torch.Generator().manual_seed(0))
        output = linear(columns.encode(X, torch.float64))
        assert_allclose(output.detach(), SCALED @ weights.detach().numpy())
        output.sum().backward()
        assert weights.grad.is_sparse
        expected = np.repeat(SCALED.sum(axis=0)[:, np.newaxis], 3, axis=1)
        assert_allclose(weights.grad.to_dense(), expected)


def test_embedding_is_a_product():
    for max_norm in [None, 0.5]:
        column = embedding_column(SparseMatrixColumn(), 2, "sum", max_norm=max_norm)
        columns = FeatureColumns([column]).fit(X)
        module = DenseFeatures(columns, torch.float64)
        weights = module.column_parameters()["x_embedding"].detach().numpy()
        if max_norm is not None:
            norms = np.linalg.norm(weights, axis=1, keepdims=True)
            weights = weights * (max_norm / norms.clip(min=max_norm))
        encoded = columns.encode(X, torch.float64)
        assert_allclose(module(encoded).detach(), SCALED @ weights)
        fitted = columns.active[0]
        fitted.weights_ = weights
        assert_allclose(fitted.transform(X), SCALED @ weights)


def test_inference():
    (linear,) = infer_feature_columns(X, "linear").active
    assert isinstance(linear, SparseMatrixColumn)
    few = scipy.sparse.vstack([X, X * 0, X * 0])  # numbers in so many rows are few
    (dense,) = infer_feature_columns(few).active
    assert (dense.name, dense.dimension, dense.combiner) == ("x_embedding", 4, "sum")
    wide = scipy.sparse.csr_array((2, 10**6))
    vectors, ridge = infer_feature_columns(wide).active
    assert (vectors.dimension, ridge.name) == (64, "x_target_ridge")
    mixed = infer_feature_columns({"a": ["u", "v", "u", "v"], "words": X}, "linear")
    assert [column.name for column in mixed.active] == ["a", "words"]
    with pytest.raises(TypeError, match="'x' is a sparse matrix"):
        infer_feature_columns(X, "sequence")


def test_number_of_features():
    column = SparseMatrixColumn("a").fit({"a": X})
    with pytest.raises(ValueError, match="'a' has 3 features, but 4 in the training"):
        column.transform({"a": X[:, :3]})
    with pytest.raises(ValueError, match="X has 3 features, but .* is expecting 4"):
        SparseMatrixColumn().fit(X).transform(X[:, :3])


def test_numbers_refused():
    for value, found in [(np.nan, "NaN"), (np.inf, r"infinity \(inf\)")]:
        matrix = X.copy()
        matrix.data[0] = value
        with pytest.raises(ValueError, match=f"matrix 'x' holds {found}, which is not"):
            SparseMatrixColumn().fit(matrix)


def test_uses_refused():
    for make, error, message in [
        (lambda c: c.set_params(key=1.5).validated(), TypeError, "'key' of Sparse"),
        (lambda c: embedding_column(c, 2), ValueError, "Set combiner='sum'"),
        (lambda c: crossed_column([c, "a"], 9), ValueError, "must not hold 'x', whose"),
        (lambda c: numeric_column("x").fit(X), TypeError, "'x' is a sparse matrix"),
    ]:
        with pytest.raises(error, match=message):
            make(SparseMatrixColumn())
