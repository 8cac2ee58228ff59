# SPDX-License-Identifier: Apache-2.0
"""Exported canned networks compute what the estimators do, with every kind of column."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skest import DNNClassifier, DNNRegressor, LinearClassifier, RNNClassifier
from skest import feature_columns as fc
from skest.exceptions import ExportError
from skest.export import load
from skest.networks import ACTIVATIONS
from tests.adapters._families import small
from tests.export._raw import raw_columns

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:No feature column of")

N_ROWS = 40
X = raw_columns(N_ROWS)
Y = np.arange(N_ROWS) % 3

words = fc.categorical_column_with_hash_bucket("words", 20)
weighted = fc.weighted_categorical_column(words, "weights")
city = fc.categorical_column_with_vocabulary_list("string", ["a", "b", "é"])
month = fc.categorical_column_with_identity("month", 12)
size = fc.numeric_column("vector", 3)
filled = fc.numeric_column("float", default_value="mean", normalizer="robust")
buckets = fc.bucketized_column(size, [0.0, 1.0])


def assert_same_answers(model, tmp_path, X=X, atol=1e-5):
    """Compare rows together and alone, and none."""
    loaded = load(model.export(tmp_path))
    expected, found = model.predict_proba(X), loaded.predict_proba(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)
    for i in range(3):
        row = {key: values[i : i + 1] for key, values in X.items()}
        np.testing.assert_allclose(
            loaded.predict_proba(row), found[i : i + 1], rtol=1e-6, atol=1e-6
        )
    none = {key: values[:0] for key, values in X.items()}
    assert loaded.predict_proba(none).shape == (0, expected.shape[1])
    return loaded


def fitted(kind, X=X, **options):
    return small(kind, **options).fit(X, Y[: len(next(iter(X.values())))])


def embedded(combiner):
    return [
        fc.embedding_column(source, 3, combiner=combiner, max_norm=norm)
        for source, norm in ((words, 0.5), (weighted, None), (city, None))
    ]


DENSE = {
    **{combiner: embedded(combiner) for combiner in ("sum", "mean", "sqrtn")},
    "buckets": [
        fc.embedding_column(buckets, 2, combiner="sum"),
        fc.indicator_column(city),
    ],
    "shared": fc.shared_embeddings(
        [words, fc.categorical_column_with_hash_bucket("string", 20)], 3
    ),
    "indicators": [
        fc.indicator_column(words),
        fc.indicator_column(fc.weighted_categorical_column(city, "month")),
        fc.indicator_column(weighted),
    ],
    "periodic": [
        fc.periodic_column(filled),
        fc.periodic_column(
            fc.numeric_column("matrix", (2, 2), normalizer="quantile"), 3, 1
        ),
        fc.periodic_column(fc.numeric_column("month", dtype="int64")),
    ],
    **{
        encoding: [
            fc.piecewise_linear_column(filled, [-1, 0, 0.5, 2], 3, encoding),
            fc.piecewise_linear_column(size, [-1, 0, 0.5, 2], 3, encoding),
            fc.piecewise_linear_column(
                fc.numeric_column("month"), [0, 5, 9], None, encoding
            ),
        ]
        for encoding in ("ple", "hat", "onehot")
    },
}
SPARSE = [
    *(words, month, buckets, city, weighted, size),
    fc.crossed_column(["string", "month"], 50),
    fc.indicator_column(city),
    fc.embedding_column(city, 2),
    fc.piecewise_linear_column(filled, [-1, 0, 0.5, 2]),
]


@pytest.mark.parametrize("columns", DENSE.values(), ids=DENSE)
def test_dense_columns(tmp_path, columns):
    model = fitted(DNNClassifier, feature_columns=[*columns, size])
    assert_same_answers(
        model, tmp_path, atol=1e-4 if "periodic" in str(columns) else 1e-5
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_linear(tmp_path, combiner):
    model = fitted(LinearClassifier, feature_columns=SPARSE, sparse_combiner=combiner)
    assert_same_answers(model, tmp_path)


@pytest.mark.parametrize(
    "activation",
    [*ACTIVATIONS, nn.ELU(0.5), nn.GELU("tanh"), nn.LeakyReLU(0.3), torch.tanh],
    ids=lambda a: "torch.tanh" if a is torch.tanh else str(a),
)
def test_activations(tmp_path, activation):
    model = fitted(DNNClassifier, feature_columns=[size], activation=activation)
    assert_same_answers(model, tmp_path)


def test_an_activation_that_no_graph_has(tmp_path):
    model = fitted(DNNClassifier, feature_columns=[size], activation=F.mish)
    with pytest.raises(ExportError, match="activation 'mish' cannot be written"):
        model.export(tmp_path)


@pytest.mark.parametrize("cell_type", ["simple_rnn", "lstm", "gru"])
def test_recurrent(tmp_path, cell_type):
    page = fc.sequence_categorical_column_with_identity("page", 6, 0)
    numbers = fc.sequence_numeric_column(
        "steps", default_value=0.0, normalizer="standard"
    )
    rows = {key: X[key][:20] for key in ("steps", "vector")}
    rows["page"] = np.empty(20, object)
    rows["page"][:] = [[i % 6] * len(cell) for i, cell in enumerate(rows["steps"])]
    model = fitted(
        RNNClassifier,
        rows,
        sequence_feature_columns=[numbers, fc.embedding_column(page, 2)],
        context_feature_columns=[size],
        units=(4, 3),
        cell_type=cell_type,
    )
    loaded = assert_same_answers(model, tmp_path, rows)
    without_a_step = {**rows, "steps": [[]] * 20, "page": [[]] * 20}
    np.testing.assert_allclose(
        loaded.predict_proba(without_a_step)[0],
        model.predict_proba({**rows, **{k: _empty(20) for k in ("steps", "page")}})[0],
        atol=1e-5,
    )


def _empty(n):
    cells = np.empty(n, object)
    cells[:] = [[] for _ in range(n)]
    return cells


@pytest.mark.parametrize("kind", ["indicator", "embedding", "weighted indicator"])
def test_one_long_list_among_many_short_ones_is_summed_exactly(tmp_path, kind):
    """Thousands of values in a row are added up as exactly as in the estimator."""
    rng = np.random.default_rng(0)
    names = [f"w{i}" for i in range(50)]
    listed = fc.categorical_column_with_vocabulary_list("k", names)
    given = fc.weighted_categorical_column(listed, "w")
    column = {
        "indicator": fc.indicator_column(listed),
        "embedding": fc.embedding_column(given, 8, combiner="sum"),
        "weighted indicator": fc.indicator_column(given),
    }[kind]
    rows = {"k": np.empty(12, object), "w": np.empty(12, object)}
    for i, n in enumerate([5000] + [0, 1] * 5 + [2]):
        rows["k"][i] = rng.choice(names, n).tolist()
        rows["w"][i] = rng.random(n).tolist()
    model = small(DNNRegressor, feature_columns=[column], learning_rate=1e-6)
    model.fit(rows, np.arange(12.0))
    found = load(model.export(tmp_path)).predict(rows)
    np.testing.assert_allclose(found, model.predict(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_of_neighbours_are_computed_at_once(tmp_path, dtype):
    kinds = [
        {"normalizer": "standard", "default_value": "mean"},
        {"normalizer": "minmax", "default_value": 3.0},
        {"normalizer": "robust", "default_value": 3.0},
        {"normalizer": "standard", "default_value": 0.5, "indicate_missing": True},
        {"normalizer": "quantile", "default_value": 0.5},
        {"default_value": -1.0},
    ]
    rng = np.random.default_rng(0)
    rows = {f"x{i:02}": rng.normal(i, i + 1, N_ROWS) for i in range(24)}
    for values in rows.values():
        values[rng.random(N_ROWS) < 0.1] = np.nan
    columns = [
        fc.numeric_column(name, dtype=dtype, **kinds[i % 5 if i < 20 else 5])
        for i, name in enumerate(rows)
    ]
    assert_same_answers(
        fitted(DNNClassifier, rows, feature_columns=columns), tmp_path, rows
    )
