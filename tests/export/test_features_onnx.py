# SPDX-License-Identifier: Apache-2.0
"""Numbers of several columns are computed at once, and are the same."""

import numpy as np
import pytest
import torch

from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    categorical_column_with_vocabulary_list,
    embedding_column,
    indicator_column,
    numeric_column,
    weighted_categorical_column,
)

pytest.importorskip("onnxruntime")
from skest.export.onnx.columns import encode
from skest.export.onnx.graph import Graph, to_model
from skest.export.onnx.inputs import Inputs
from skest.export.onnx.networks import Scope, dense_features
from tests.export._feeds import feeds
from tests.export._running import run

KINDS = [
    {"normalizer": "standard", "default_value": "mean"},
    {"normalizer": "minmax", "default_value": 3.0},
    {"normalizer": "robust", "default_value": 3.0},
    {"normalizer": "standard", "default_value": 0.5, "indicate_missing": True},
    {"normalizer": "quantile", "default_value": 0.5},
    {"normalizer": "standard", "default_value": "mean", "dtype": "float64"},
    {"default_value": -1.0},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_are_equal(dtype):
    rng = np.random.default_rng(0)
    choice = rng.integers(0, len(KINDS), 60).tolist()
    X = {f"x{i:02}": rng.normal(i, i + 1, 200) for i in range(len(choice))}
    for values in X.values():
        values[rng.random(200) < 0.1] = np.nan
    X["y"] = rng.normal(size=(200, 3))
    columns = [
        numeric_column(name, **KINDS[i]) for name, i in zip(X, choice, strict=False)
    ]
    columns.append(numeric_column("y", 3, normalizer="minmax"))
    columns = FeatureColumns(columns).fit(X)
    module = DenseFeatures(columns, dtype=dtype)
    graph = Graph("dense")
    inputs = Inputs(graph, columns.active, str(dtype)[6:])
    values = dense_features(
        module, Scope(graph), encode(columns, inputs, str(dtype)[6:])
    )
    graph.output("y_out", values, (None, module.out_features))
    found = run(to_model(graph), feeds(inputs.specs, X))["y_out"]
    np.testing.assert_array_equal(found, module(columns.encode(X, dtype)).numpy())


def test_neighbours_take_the_nodes_of_one():
    def n_nodes(n_columns):
        X = {f"x{i}": np.arange(5.0) for i in range(n_columns)}
        columns = [numeric_column(name, normalizer="standard") for name in X]
        columns = FeatureColumns(columns).fit(X)
        graph = Graph("dense")
        inputs = Inputs(graph, columns.active, np.float32)
        encoded = encode(columns, inputs, np.float32)
        values = dense_features(DenseFeatures(columns), Scope(graph), encoded)
        graph.output("y", values, (None, n_columns))
        return len(graph.nodes)

    assert n_nodes(30) == n_nodes(2)


WORDS = [f"w{i}" for i in range(3000)]
BAGS = {
    "indicator": lambda words: indicator_column(words),
    "embedding": lambda words: embedding_column(words, 64, combiner="sqrtn"),
    "weighted indicator": lambda words: indicator_column(
        weighted_categorical_column(words, "w")
    ),
    "weighted embedding": lambda words: embedding_column(
        weighted_categorical_column(words, "w"), 64
    ),
}


def bags_graph(module, columns):
    """A graph with the output "y", and its inputs."""
    graph = Graph("bags")
    inputs = Inputs(graph, columns.active, np.float32)
    values = dense_features(module, Scope(graph), encode(columns, inputs, "float32"))
    graph.output("y", values, (None, module.out_features))
    return graph, inputs


@pytest.mark.parametrize("kind", BAGS)
def test_one_long_list_among_many_short_ones(kind):
    """Only the words that are there are looked up: no node makes a row for each place."""
    words = categorical_column_with_vocabulary_list("k", WORDS)
    columns = FeatureColumns([BAGS[kind](words)])
    n = 600
    X = {"k": [["w1", "w2", "w2"] * (n // 3)] + [[]] * (n - 2) + [["w2"]]}
    X["w"] = [[0.5, 1.0, -2.0] * (n // 3)] + [[]] * (n - 2) + [[3.0]]
    module = DenseFeatures(columns)
    graph, inputs = bags_graph(module, columns)
    made = [v.ndim for values in graph._known.values() for v in values]
    assert max(made) == 2  # rows, and places in them
    found = run(to_model(graph), feeds(inputs.specs, X))["y"]
    expected = module(columns.encode(X)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if kind == "indicator":
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "kind", ["embedding", "weighted embedding", "weighted indicator"]
)
def test_sums_of_long_lists_are_exact(kind):
    """Thousands of values in a row are added up as exactly as in the estimator."""
    rng = np.random.default_rng(0)
    words = categorical_column_with_vocabulary_list("k", WORDS[:50])
    weighted = weighted_categorical_column(words, "w")
    column = {
        "embedding": embedding_column(words, 8, combiner="sum"),
        "weighted embedding": embedding_column(weighted, 8, combiner="sum"),
        "weighted indicator": indicator_column(weighted),
    }[kind]
    columns = FeatureColumns([column])
    common = 1 / np.arange(1, 51)  # by Zipf's law
    X = {"k": rng.choice(WORDS[:50], (4, 5000), p=common / common.sum()).tolist()}
    X["w"] = rng.random((4, 5000)).tolist()
    module = DenseFeatures(columns)
    graph, inputs = bags_graph(module, columns)
    found = run(to_model(graph), feeds(inputs.specs, X))["y"]
    exact = module.double()(columns.encode(X, torch.float64)).detach().numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
