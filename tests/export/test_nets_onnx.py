# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime computes the logits of the canned networks."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import nn

from skest.exceptions import ExportError
from skest.export.onnx.inputs import forms_of
from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    LinearFeatures,
    SequenceFeatures,
    SparseMatrixColumn,
    bucketized_column,
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    indicator_column,
    numeric_column,
    periodic_column,
    piecewise_linear_column,
    sequence_categorical_column_with_identity,
    sequence_numeric_column,
    shared_embeddings,
    weighted_categorical_column,
)
from skest.feature_columns.lookup import COMBINERS
from skest.heads import RegressionHead
from skest.networks import ACTIVATIONS, CELL_TYPES, DNN, RNN, Baseline, Combined
from tests.export._raw import raw_columns

pytest.importorskip("onnxruntime")
from skest.export.onnx.model import build_onnx
from tests.export._feeds import feeds
from tests.export._running import session

DTYPES = [torch.float32, torch.float64]
words = categorical_column_with_hash_bucket("words", 20)
city = categorical_column_with_vocabulary_list("string", ["a", "b", "é"])
month = categorical_column_with_identity("month", 12)
size = numeric_column("vector", 3)


def randomised(network, seed=0):
    """The network with other variables than zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not tensor.is_floating_point():
                continue
            tensor.normal_(generator=generator)
            if name.endswith("running_var"):
                tensor.square_()
    return network.eval()


def encoded(columns, X, dtype):
    if isinstance(columns, dict):
        return {part: given.encode(X, dtype) for part, given in columns.items()}
    return columns.encode(X, dtype)


def assert_same_logits(columns, network, X, dtype=torch.float32, atol=1e-5):
    """Compare rows together and alone, and let ONNX Runtime compute none."""
    network = randomised(network)
    head = RegressionHead(label_dimension=2)
    graph = build_onnx(columns, network, head, forms=forms_of(X))
    loaded = session(graph.model)

    def logits(rows):
        return loaded.run(["predictions"], feeds(graph.inputs, rows))[0]

    with torch.no_grad():
        expected = network(encoded(columns, X, dtype)).numpy()
    found = logits(X)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)
    for i in range(3):
        row = {key: values[i : i + 1] for key, values in X.items()}
        np.testing.assert_allclose(logits(row), found[i : i + 1], rtol=1e-6, atol=1e-6)
    none = {name: a[:0] for name, a in feeds(graph.inputs, X).items()}
    assert loaded.run(["predictions"], none)[0].shape == (0, 2)
    return graph.model


def fitted(columns, X):
    return FeatureColumns(columns).fit(X)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["ple", "hat", "onehot"])
def test_piecewise_linear_columns(encoding, dtype):
    X = raw_columns(40)
    sources = [numeric_column("float"), numeric_column("vector", 3)]
    given = [
        piecewise_linear_column(source, [-1, 0, 0.5, 2], dimension, encoding)
        for source, dimension in zip(sources, (3, 3), strict=True)
    ]
    code = piecewise_linear_column(numeric_column("month"), [0, 5, 9], None, encoding)
    columns = dict.fromkeys(["linear", "dnn"], fitted([size, *given, code], X))
    network = Combined(
        LinearFeatures(columns["linear"], 2, dtype=dtype),
        DNN(DenseFeatures(columns["dnn"], dtype=dtype), (7, 5), 2, dtype=dtype),
    )
    assert_same_logits(columns, network, X, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_periodic_columns(dtype):
    X = raw_columns(40)
    filled = numeric_column("float", default_value="mean", normalizer="robust")
    month = numeric_column("month", dtype="int64")
    given = [
        periodic_column(filled),
        periodic_column(numeric_column("vector", 3), 2, 5),
        periodic_column(numeric_column("matrix", (2, 2), normalizer="quantile"), 3, 1),
        periodic_column(month),
    ]
    columns = fitted([size, month, *given], X)
    network = DNN(DenseFeatures(columns, dtype=dtype), (7, 5), 2, dtype=dtype)
    assert_same_logits(columns, network, X, dtype, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dnn(activation, dtype):
    X = raw_columns(40)
    columns = fitted([size, embedding_column(words, 3), indicator_column(city)], X)
    network = DNN(
        DenseFeatures(columns, dtype=dtype),
        (7, 5),
        2,
        activation=activation,
        dtype=dtype,
    )
    assert_same_logits(columns, network, X, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_and_dropout(dtype):
    X = raw_columns(40)
    columns = fitted([size], X)
    network = DNN(
        DenseFeatures(columns, dtype=dtype),
        (6,),
        2,
        batch_norm=True,
        dropout=0.5,
        dtype=dtype,
    )
    assert_same_logits(columns, network, X, dtype)


MODULES = [
    nn.Tanh(),
    nn.ReLU(),
    nn.ELU(0.5),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.LeakyReLU(0.3),
    nn.SELU(),
    nn.SiLU(),
    nn.Sigmoid(),
    nn.Identity(),
    F.relu,
    torch.tanh,
    F.leaky_relu,
]


@pytest.mark.parametrize(
    "activation", MODULES, ids=lambda given: getattr(given, "__name__", str(given))
)
def test_activations_of_torch(activation):
    X = raw_columns(20)
    columns = fitted([size], X)
    network = DNN(DenseFeatures(columns), (6,), 2, activation=activation)
    assert_same_logits(columns, network, X)


KINDS = [
    *product(["bag", "weighted", "single", "buckets"], COMBINERS),
    ("sparse", "sum"),
]


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize(("kind", "combiner"), KINDS)
def test_embeddings(kind, combiner, max_norm):
    X = dict(raw_columns(40))
    X["sparse"] = scipy.sparse.random_array((40, 9), density=0.3, format="csr", rng=0)
    source = {
        "bag": words,
        "weighted": weighted_categorical_column(words, "weights"),
        "single": city,
        "buckets": bucketized_column(size, [0.0, 1.0]),
        "sparse": SparseMatrixColumn("sparse"),
    }[kind]
    embedded = embedding_column(source, 3, combiner=combiner, max_norm=max_norm)
    columns = fitted([embedded], X)
    network = DNN(DenseFeatures(columns), (4,), 2)
    assert_same_logits(columns, network, X)


def test_shared_embeddings_have_one_table():
    X = raw_columns(40)
    columns = fitted(shared_embeddings([words, words_too()], 3), X)
    network = DNN(DenseFeatures(columns), (4,), 2)
    model = assert_same_logits(columns, network, X)
    names = [tensor.name for tensor in model.graph.initializer]
    assert len([name for name in names if "shared_embedding" in name]) == 1


def words_too():
    return categorical_column_with_hash_bucket("string", 20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_linear(combiner, dtype):
    X = dict(raw_columns(40))
    X["sparse"] = scipy.sparse.random_array((40, 9), density=0.3, format="csr", rng=0)
    columns = fitted(
        [
            words,
            month,
            size,
            crossed_column(["string", "month"], 50),
            bucketized_column(numeric_column("float", default_value=0.0), [0.0]),
            weighted_categorical_column(words, "weights"),
            indicator_column(city),
            embedding_column(city, 2),
            SparseMatrixColumn("sparse"),
        ],
        X,
    )
    network = LinearFeatures(columns, 2, combiner, dtype=dtype)
    assert_same_logits(columns, network, X, dtype)


def test_indicators_of_bags_and_weights():
    X = raw_columns(40)
    columns = fitted(
        [
            indicator_column(words),
            indicator_column(weighted_categorical_column(city, "month")),
            bucketized_column(size, [0.0, 1.0]),
        ],
        X,
    )
    assert_same_logits(columns, DNN(DenseFeatures(columns), (4,), 2), X)


@pytest.mark.parametrize("parts", [("linear",), ("dnn",), ("linear", "dnn")])
def test_combined(parts):
    X = raw_columns(40)
    columns = {
        "linear": fitted([crossed_column(["string", "month"], 50), city], X),
        "dnn": fitted([size, embedding_column(city, 2)], X),
    }
    linear = LinearFeatures(columns["linear"], 2)
    dnn = DNN(DenseFeatures(columns["dnn"]), (5,), 2)
    network = Combined(
        linear if "linear" in parts else None, dnn if "dnn" in parts else None
    )
    given = {part: columns[part] for part in parts}
    model = assert_same_logits(given, network, X)
    if len(parts) == 2:  # the vocabulary is looked up once for both
        encoders = [n for n in model.graph.node if n.op_type == "LabelEncoder"]
        assert len(encoders) == 2  # ids, and what is missing in the cross


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell_type", CELL_TYPES)
def test_rnn(cell_type, dtype):
    X = raw_columns(40)
    numbers = sequence_numeric_column("steps", default_value=0.0, normalizer="standard")
    columns = {"sequence": fitted([numbers], X), "context": fitted([size], X)}
    network = RNN(
        SequenceFeatures(columns["sequence"], dtype=dtype),
        DenseFeatures(columns["context"], dtype=dtype),
        (4, 3),
        2,
        cell_type=cell_type,
        dtype=dtype,
    )
    assert_same_logits(columns, network, X, dtype)


def test_rnn_on_categories():
    X = {"page": np.array([[1, 2, -1], [3, -1, -1], [-1, -1, -1], [0, -1, 5]])}
    page = sequence_categorical_column_with_identity("page", 6)
    columns = {
        "sequence": fitted([embedding_column(page, 2), indicator_column(page)], X)
    }
    network = RNN(SequenceFeatures(columns["sequence"]), None, (3,), 2)
    assert_same_logits(columns, network, X)
    assert_same_logits(columns, network, {"page": np.full((3, 2), -1)})


@pytest.mark.parametrize("cell_type", CELL_TYPES)
def test_rnn_without_a_step(cell_type):
    X = raw_columns(10)
    columns = {
        "sequence": fitted([sequence_numeric_column("steps", default_value=0.0)], X)
    }
    network = RNN(
        SequenceFeatures(columns["sequence"]), None, (3,), 2, cell_type=cell_type
    )
    empty = np.empty(3, dtype=object)
    empty[:] = [[], [], []]
    assert_same_logits(columns, network, {"steps": empty})


def test_baseline():
    network = randomised(Baseline(2))
    graph = build_onnx(None, network, RegressionHead(2), forms=forms_of({"c": ["a"]}))
    found = session(graph.model).run(None, {"c": np.array([["x"], [""]], object)})[0]
    np.testing.assert_array_equal(found, network.bias.detach().expand(2, 2))
    graph = build_onnx(None, network, RegressionHead(2))
    assert session(graph.model).run(None, {"x": np.zeros((3, 4), "f")})[0].shape == (
        3,
        2,
    )


def test_layers_of_torch():
    X = raw_columns(20)
    columns = fitted([size], X)
    network = nn.Sequential(
        DenseFeatures(columns),
        nn.Linear(3, 4, bias=False),
        nn.BatchNorm1d(4, affine=False),
        nn.LayerNorm(4),
        nn.Dropout(0.5),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.Linear(4, 2),
    )
    assert_same_logits(columns, network, X)


def test_logits_are_scaled():
    X = raw_columns(5)
    columns = fitted([size], X)
    network = LinearFeatures(columns, 2)
    scale = np.array([2.0, 3.0]), np.array([10.0, 20.0])
    head = RegressionHead(label_dimension=2)
    graph = build_onnx(columns, network, head, logits_scale=scale)
    found = session(graph.model).run(None, feeds(graph.inputs, X))[0]
    np.testing.assert_array_equal(found, [[10, 20]] * 5)


class _Tower(nn.Module):
    def forward(self, x):
        return x


class _Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class _Own(DNN):
    def hidden(self, features):
        return 2 * super().hidden(features)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (_Tower(), "_Tower at '1' cannot be written as ONNX, because it is not one of"),
        (_Twice(3, 2), "_Twice at '1'"),
        (nn.Conv1d(1, 1, 1), "Conv1d at '1'"),
    ],
)
def test_refuses_modules_that_it_does_not_know(layer, message):
    X = raw_columns(5)
    columns = fitted([size], X)
    network = nn.Sequential(DenseFeatures(columns), layer)
    with pytest.raises(ExportError, match=message):
        build_onnx(columns, network, RegressionHead(2))


def test_refuses_a_network_that_is_changed_inside():
    columns = FeatureColumns([size])
    network = _Own(DenseFeatures(columns), (4,), 2)
    with pytest.raises(ExportError, match="The module _Own cannot be written"):
        build_onnx(columns, network, RegressionHead(2))


def test_refuses_hooks():
    columns = FeatureColumns([size])
    network = LinearFeatures(columns, 2)
    network.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(ExportError, match="LinearFeatures .* because it has hooks"):
        build_onnx(columns, network, RegressionHead(2))


def test_refuses_activations_that_it_does_not_know():
    columns = FeatureColumns([size])
    network = DNN(DenseFeatures(columns), (4,), 2, activation=F.mish)
    with pytest.raises(ExportError, match="activation 'mish' cannot be written"):
        build_onnx(columns, network, RegressionHead(2))


def test_refuses_half_precision():
    columns = FeatureColumns([size])
    network = LinearFeatures(columns, 2).half()
    with pytest.raises(ExportError, match="network of float16 cannot be exported"):
        build_onnx(columns, network, RegressionHead(2))


def test_refuses_another_rank():
    columns = FeatureColumns([size])
    with pytest.raises(ValueError, match="'input_rank' must be 1 or 2; got 3"):
        build_onnx(columns, LinearFeatures(columns, 2), RegressionHead(2), input_rank=3)
