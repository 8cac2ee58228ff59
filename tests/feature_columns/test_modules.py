# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch
from torch import nn

from skest import feature_columns as fc
from skest.feature_columns.base import as_dense
from skest.feature_columns.modules import parameter_name

IDENTITY = fc.categorical_column_with_identity("k", 4)
X = {"k": np.array([0, 3, -1]), "x": np.array([0.5, -1.0, 2.0])}


def dense_columns() -> fc.FeatureColumns:
    number = fc.numeric_column("x")
    return fc.FeatureColumns(
        [
            number,
            fc.bucketized_column(number, [0.0]),
            fc.indicator_column(IDENTITY),
            fc.embedding_column(IDENTITY, 2),
        ]
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_output_is_sorted_by_name(dtype: torch.dtype) -> None:
    columns = dense_columns()
    module = fc.DenseFeatures(columns, dtype, seeded())
    output = module(columns.encode(X, dtype))
    assert output.dtype == dtype
    assert output.shape == (3, module.out_features) == (3, 4 + 2 + 1 + 2)
    embedded = module.column_parameters()["k_embedding"]
    assert embedded.is_row_table
    torch.testing.assert_close(output[:2, :2], embedded[[0, 3]])
    assert output[:, 2:6].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert output[:, 6].tolist() == X["x"].tolist()
    assert output[:, 7:].tolist() == [[0, 1], [1, 0], [0, 1]]


def test_without_a_generator_the_seed_of_torch_decides() -> None:
    columns = [fc.embedding_column(IDENTITY, 2)]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        before = torch.get_rng_state()
        first, second = (
            fc.DenseFeatures(columns).state_dict()["k_embedding_weights"]
            for _ in range(2)
        )
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(4)
        other = fc.DenseFeatures(columns).state_dict()["k_embedding_weights"]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_linear_equals_a_dense_matrix(combiner: str) -> None:
    columns = fc.FeatureColumns(
        [
            fc.numeric_column("y", shape=2),
            IDENTITY,
            fc.bucketized_column(fc.numeric_column("x"), [0.0]),
        ]
    )
    cells = {
        "k": np.array([[0, 3, 3], [1, -1, -1], [-1, -1, -1]]),
        "x": X["x"],
        "y": np.arange(6.0).reshape(3, 2),
    }
    linear = fc.LinearFeatures(columns, units=3, sparse_combiner=combiner)
    encoded = columns.encode(cells)
    assert linear(encoded).tolist() == [[0] * 3] * 3
    for parameter in linear.parameters():
        nn.init.normal_(parameter, generator=seeded())
    weights = torch.cat(list(linear.column_parameters().values()))
    counts = torch.from_numpy(
        np.hstack([as_dense(columns.active[i].transform(cells)) for i in (1, 2, 0)])
    )
    divisor = counts[:, :4].sum(1, keepdim=True).clamp(min=1)
    counts[:, :4] /= {"sum": 1, "mean": divisor, "sqrtn": divisor.sqrt()}[combiner]
    assert list(linear.column_parameters()) == ["k", "x_bucketized", "y"]
    torch.testing.assert_close(linear(encoded), counts @ weights + linear.bias)
    linear(encoded).sum().backward()
    sparse = {n: p.grad.is_sparse for n, p in linear.column_parameters().items()}
    assert sparse == {"k": True, "x_bucketized": True, "y": False}


def test_linear_over_an_embedding() -> None:
    columns = fc.FeatureColumns([fc.embedding_column(IDENTITY, 2)])
    linear = fc.LinearFeatures(columns, generator=seeded())
    names = {name: tuple(p.shape) for name, p in linear.named_parameters()}
    assert names == {
        "bias": (1,),
        "k_embedding_weights": (2, 1),
        "dense.k_embedding_weights": (4, 2),
    }
    nn.init.ones_(linear.column_parameters()["k_embedding"])
    table = linear.dense.column_parameters()["k_embedding"]
    torch.testing.assert_close(linear(columns.encode(X))[1], table[3].sum()[None])


AWKWARD = ["a.b", "a%2Eb", "type", "keys", "bias", "", "é x/y", "dense", "forward"]


def test_awkward_names_of_columns() -> None:
    for name in AWKWARD:
        for make in [fc.DenseFeatures, fc.LinearFeatures]:
            categorical = fc.categorical_column_with_identity(name, 3)
            column = (
                fc.embedding_column(categorical, 2)
                if make is fc.DenseFeatures
                else categorical
            )
            module = make([column])
            assert list(module.column_parameters()) == [column.name]
            assert parameter_name(column.name) in module.state_dict()
            assert module(fc.FeatureColumns([column]).encode({name: [1]})).shape[0] == 1


def test_columns_refused() -> None:
    for make, error, message in [
        (
            lambda: fc.DenseFeatures([IDENTITY]),
            ValueError,
            "'k' is categorical and has no dense output. Wrap it in indicator_column or",
        ),
        (lambda: fc.DenseFeatures([]), ValueError, "non-empty list of feature columns"),
        (
            lambda: fc.LinearFeatures([]),
            ValueError,
            "non-empty list of feature columns",
        ),
        (
            lambda: fc.LinearFeatures([IDENTITY], 0),
            ValueError,
            "'units' .* at least 1; got 0",
        ),
        (
            lambda: fc.LinearFeatures([IDENTITY], sparse_combiner="max"),
            ValueError,
            "'sparse_combiner' of LinearFeatures must be one of",
        ),
        (
            lambda: fc.DenseFeatures(
                [fc.indicator_column(fc.categorical_column_with_vocabulary_list("v"))]
            ),
            ValueError,
            "'v' has not learned its vocabulary yet",
        ),
    ]:
        with pytest.raises(error, match=message):
            make()


def test_the_floating_type_may_change() -> None:
    for module_class in [fc.DenseFeatures, fc.LinearFeatures]:
        columns = dense_columns()
        module = module_class(columns)
        network = nn.Sequential(module).double()
        assert network(columns.encode(X, torch.float64)).dtype == torch.float64
        assert network.float()(columns.encode(X)).dtype == torch.float32
