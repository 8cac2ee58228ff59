# SPDX-License-Identifier: Apache-2.0
"""Numbers of several columns are computed at once, and are the same."""

import numpy as np
import pytest
import torch

from skest.feature_columns import DenseFeatures, FeatureColumns, numeric_column

pytest.importorskip("onnxruntime")
from skest.export.columns_onnx import encode
from skest.export.features_onnx import dense_features
from skest.export.graph import Graph
from skest.export.inputs import Inputs
from skest.export.model_proto import to_model
from skest.export.scope import Scope
from tests.export._feeds import feeds
from tests.export._running import run

KINDS = [
    {"normalizer": "standard", "default_value": "mean"},
    {"normalizer": "minmax", "default_value": 3.0},
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
