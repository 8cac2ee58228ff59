# SPDX-License-Identifier: Apache-2.0
"""Exports whose ids the client computes."""

import json

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.utils import murmurhash3_32 as reference

import skest
from skest import export
from skest import feature_columns as fc
from skest._hashes import murmurhash3_32
from skest.exceptions import ArtifactError, ExportError
from skest.export.client_hashing import ClientInputs
from tests.export import _portable

ROWS = 40
X = pd.DataFrame(
    {
        "age": np.linspace(0, 1, ROWS),
        "city": ["Rome", "Łódź", None, ""] * (ROWS // 4),
        "level": np.arange(ROWS) % 7,
        "tags": ["a|b", "b", None, "c|a|a"] * (ROWS // 4),
        "words": ["ant", "bee", "cat", None] * (ROWS // 4),
    }
)
Y = np.array(["no", "yes"] * (ROWS // 2), object)
COLUMNS = [
    fc.numeric_column("age"),
    fc.embedding_column(fc.categorical_column_with_hash_bucket("city", 20), 3),
    fc.indicator_column(fc.categorical_column_with_hash_bucket("level", 5)),
    fc.indicator_column(
        fc.categorical_column_with_hash_bucket("tags", 11, delimiter="|")
    ),
    fc.indicator_column(
        fc.categorical_column_with_vocabulary_list("words", ["ant"], num_oov_buckets=3)
    ),
    fc.indicator_column(fc.crossed_column(["city", "level"], 50)),
]


def fitted(columns=COLUMNS):
    model = skest.DNNClassifier(
        (8,), feature_columns=columns, max_iter=2, random_state=0
    )
    return model.fit(X, Y)


@pytest.mark.parametrize("rank", [1, 2])
def test_predictions_are_those_of_the_graph_that_hashes(tmp_path, rank):
    model = fitted()
    version = model.export(tmp_path / "client", hashing="client", input_rank=rank)
    model.export(tmp_path / "graph", input_rank=rank)
    loaded, other = (export.load(tmp_path / name) for name in ("client", "graph"))
    more = X.assign(city=[f"city {i}" for i in range(ROWS)])
    for table in (X, more, X[:1], X[:0]):
        found = loaded.predict_proba(table)
        np.testing.assert_array_equal(found, other.predict_proba(table))
        if len(table):
            np.testing.assert_allclose(
                found, model.predict_proba(table), rtol=0, atol=1e-6
            )
    graph = onnx.load(version / "model.onnx")
    assert "com.microsoft" not in {entry.domain for entry in graph.opset_import}
    assert "com.microsoft" not in {node.domain for node in graph.graph.node}
    names = {tensor.name for tensor in graph.graph.input}
    assert {"city", "tags"}.isdisjoint(names) and "words" in names
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["features"]["city_ids_20"]["computed"] == {
        "algo": "murmur3_32",
        "from": ["city"],
        "seed": 0,
        "buckets": 20,
    }
    assert set(loaded.signatures["predict"]["inputs"]) == set(X)
    assert set(loaded.features) == set(X)


def test_crosses_of_columns_stay_in_the_graph(tmp_path):
    age = fc.bucketized_column(fc.numeric_column("age"), [0.5])
    crossed = fc.indicator_column(fc.crossed_column(["city", age], 50))
    model = fitted([crossed])
    with pytest.raises(ExportError, match="reads the feature columns .*age"):
        model.export(tmp_path, hashing="client")
    with pytest.raises(ValueError, match="'hashing' must be 'graph' or 'client'"):
        model.export(tmp_path, hashing="server")


def test_hashes_are_those_of_scikit_learn():
    draw = np.random.default_rng(0)
    points = draw.integers(0, 0x110000, 20_000)
    points = points[(points < 0xD800) | (points >= 0xE000)]
    text = "".join(map(chr, points.tolist()))
    starts, sizes = draw.integers(0, 15_000, 3000), draw.integers(0, 30, 3000)
    values = ["", *(text[at : at + n] for at, n in zip(starts, sizes, strict=True))]
    for seed in (0, 1, 2**32 - 1):
        expected = [reference(value, seed, True) for value in values]
        np.testing.assert_array_equal(murmurhash3_32(values, seed), expected)
    assert len(murmurhash3_32([])) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"algo": "md5"},
        {"buckets": 0},
        {"buckets": 2.5},
        {"seed": -1},
        {"from": ["other"]},
        {"from": []},
        {"start": "x"},
    ],
    ids=str,
)
def test_unknown_ways_are_refused(change):
    how = {"algo": "murmur3_32", "from": ["a"], "seed": 0, "buckets": 9, **change}
    ids = {"dtype": "int64", "shape": [None, 1], "computed": how}
    with pytest.raises(ArtifactError, match="not known how to compute the feature 'b'"):
        ClientInputs({"b": ids}, {"a": {"dtype": "string", "shape": [None, 1]}})


def test_model_functions_hash_in_their_graph(tmp_path):
    options = {"model_fn": _portable.mixed_model_fn, "max_iter": 1}
    columns = [
        fc.embedding_column(fc.categorical_column_with_hash_bucket("street", 9), 3)
    ]
    model = skest.ModelFnClassifier(feature_columns=columns, **options)
    model.fit(_portable.table(), _portable.targets()["classes"])
    message = "hashing='client' is of the canned estimators; got a ModelFnClassifier"
    with pytest.raises(ExportError, match=message):
        model.export(tmp_path, hashing="client")
    assert not list(tmp_path.iterdir())


def test_ids_of_what_is_not_given():
    how = {"algo": "murmur3_32", "from": ["a"], "seed": 0, "buckets": 9}
    ids = {"dtype": "int64", "shape": [None, 1], "computed": how}
    inputs = ClientInputs({"b": ids}, {"a": {"dtype": "string", "shape": [None, 1]}})
    with pytest.raises(ValueError, match=r"takes no \['a'\], of which 'b' is computed"):
        inputs.feeds({})
