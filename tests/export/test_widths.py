# SPDX-License-Identifier: Apache-2.0
"""What the manifest says of the numbers that a network makes of its features."""

import json

import numpy as np
import pandas as pd
import pytest

import skest
from skest import feature_columns as fc

pytest.importorskip("onnxruntime")

X = pd.DataFrame(
    {"tags": [["a", "b"], ["c"]] * 6, "more": [["p"], []] * 6, "city": ["x", "y"] * 6}
)
X["vector"] = [[0.0, 1.0, 2.0]] * 12
TAGS = fc.categorical_column_with_vocabulary_list("tags", list("abc"))
CITY = fc.categorical_column_with_vocabulary_list("city", ["x", "y"])
CROSS = fc.crossed_column(["tags", "more"], 100)
BUCKETS = fc.bucketized_column(fc.numeric_column("vector", 3), [0.0, 1.0, 2.0, 3.0])


def passing(of, **numbers):
    """Numbers that are gone before others are made."""
    return {"of": of, "transient": True, **numbers}


CASES = {
    "one word, indicator": (fc.indicator_column(CITY), [{"of": ["city"], "row": 2}]),
    "one word, embedding": (fc.embedding_column(CITY, 5), [{"of": ["city"], "row": 5}]),
    "list, indicator": (fc.indicator_column(TAGS), [{"of": ["tags"], "row": 3}]),
    "list, embedding": (
        fc.embedding_column(TAGS, 4),
        [{"of": ["tags"], "row": 4, "value": 4}],
    ),
    "numbers, waves": (
        fc.periodic_column(fc.numeric_column("vector", 3)),
        [{"of": ["vector"], "row": 3 * 3 * 16 + 2 * 3 * 3}],
    ),
    "cross, embedding": (
        fc.embedding_column(CROSS, 4),
        [{"of": ["more", "tags"], "row": 4, "value": 4}],
    ),
}


def widths(model, base, **options):
    version = model.fit(X, [0, 1, 2] * 4).export(base, verify=False, **options)
    return json.loads((version / "manifest.json").read_text())["widths"]


@pytest.mark.parametrize("case", CASES)
def test_widths_of_dense_columns(tmp_path, case):
    column, expected = CASES[case]
    model = skest.DNNClassifier((2,), feature_columns=[column], max_iter=1)
    assert widths(model, tmp_path) == expected


def test_widths_of_linear_models(tmp_path):
    model = skest.LinearClassifier(feature_columns=[TAGS, CITY], max_iter=1)
    assert widths(model, tmp_path) == [
        passing(["city"], row=3),
        passing(["tags"], row=3),
        {"of": ["tags"], "value": 3},
    ]


def test_widths_of_buckets(tmp_path):
    """A vector meets the boundaries; each of its three values has an embedding."""
    columns = [fc.embedding_column(BUCKETS, 5), fc.indicator_column(BUCKETS)]
    columns.append(fc.embedding_column(fc.crossed_column([BUCKETS, "tags"], 9), 2))
    model = skest.DNNClassifier((2,), feature_columns=columns, max_iter=1)
    assert widths(model, tmp_path) == [
        passing(["vector"], row=3 * 4),
        {"of": ["tags", "vector"], "row": 2, "value": 2},
        {"of": ["vector"], "row": 5 + 3 * 5, "value": 5},
    ]


@pytest.mark.parametrize(("n_boundaries", "n_compared"), [(4, 4), (31, 31), (500, 22)])
def test_many_boundaries_take_little(tmp_path, n_boundaries, n_compared):
    boundaries = np.linspace(0, 2, n_boundaries).tolist()
    column = fc.bucketized_column(fc.numeric_column("vector", 3), boundaries)
    model = skest.LinearRegressor(feature_columns=[column], max_iter=1)
    first, *_ = widths(model, tmp_path)
    assert first == passing(["vector"], row=3 * n_compared)


def test_widths_of_quantiles(tmp_path):
    columns = [fc.numeric_column("vector", 3, normalizer="quantile")]
    model = skest.DNNClassifier((2,), feature_columns=columns, max_iter=1)
    assert widths(model, tmp_path) == []  # nothing lies between two numbers
    rows = X.assign(vector=np.random.default_rng(0).normal(size=(12, 3)).tolist())
    version = model.fit(rows, [0, 1, 2] * 4).export(tmp_path, verify=False)
    found = json.loads((version / "manifest.json").read_text())["widths"]
    assert found == [passing(["vector"], row=10)]


def test_crosses_have_vectors_but_not_weights(tmp_path):
    other = fc.bucketized_column(fc.numeric_column("other", 3), [0.0])
    cross = fc.crossed_column([BUCKETS, other, "tags"], 9)
    weighted = fc.weighted_categorical_column(TAGS, "weights")
    columns = [cross, weighted]
    rows = X.assign(other=X["vector"], weights=X["tags"].map(lambda t: [1.0] * len(t)))
    model = skest.LinearClassifier(feature_columns=columns, max_iter=1)
    version = model.fit(rows, [0, 1, 2] * 4).export(tmp_path, verify=False)
    features = json.loads((version / "manifest.json").read_text())["features"]
    found = {name: spec.get("crossed") for name, spec in features.items()}
    assert found["vector"] == [["vector", "other", "tags"]]
    assert {*found} == {"vector", "other", "tags", "weights"}
    assert found["other"] is found["tags"] is found["weights"] is None


def test_widths_of_sequences(tmp_path):
    steps = fc.sequence_categorical_column_with_vocabulary_list("tags", list("abc"))
    model = skest.RNNClassifier(
        [7],
        cell_type="lstm",
        sequence_feature_columns=[fc.embedding_column(steps, 4)],
        context_feature_columns=[fc.indicator_column(CITY)],
        max_iter=1,
    )
    # A step has its embedding, the context beside it, and the gates of the layer.
    assert widths(model, tmp_path) == [
        {"of": ["tags"], "place": 4 + 2 + 4 * 7},
        {"of": ["city"], "row": 2},
    ]
