# SPDX-License-Identifier: Apache-2.0
"""Models of every family, to be exported once and run in every engine."""

import importlib.util

import numpy as np
import pandas as pd
import torch
from torch import nn

import skest
from skest import feature_columns as fc
from tests.adapters._families import small

N_ROWS = 60
_WORDS = ["Rome", "Ürümqi", "Łódź", "東京", "e\u0301", "\U0001d518", "x" * 300, None]


def table():
    """Numbers, strings of any plane, bags, split strings and sequences, some missing.

    No string holds NUL, at which the engines of JavaScript end it.
    """
    rng = np.random.default_rng(0)
    size = rng.normal(size=N_ROWS)
    size[::7] = np.nan

    lengths = rng.integers(0, 5, N_ROWS)

    def lists(values):
        return [values(k) for k in rng.integers(0, 5, N_ROWS)]

    return pd.DataFrame(
        {
            "size": size,
            "rooms": rng.integers(0, 9, N_ROWS),
            "code": rng.integers(-(2**62), 2**62, N_ROWS),
            "day": pd.date_range("1969-12-30", periods=N_ROWS, freq="31h").astype(str),
            "city": rng.choice(np.array(_WORDS, dtype=object), N_ROWS),
            "street": [f"Straße {i}" for i in rng.integers(0, 40, N_ROWS)],
            "text": lists(lambda k: "|".join("αβγδε"[:k])),
            # Of one length in each row, as weights and their values must be.
            "tags": [list("abcde")[:k] for k in lengths],
            "weights": [rng.normal(0.5, 1, k).tolist() for k in lengths],
            "visits": [rng.choice(_WORDS[:3], k).tolist() for k in lengths],
            "steps": [rng.normal(size=k).tolist() for k in lengths],
        }
    )


def columns():
    """Wide and deep columns of each kind."""
    city = fc.categorical_column_with_vocabulary_list("city", num_oov_buckets=2)
    street = fc.categorical_column_with_hash_bucket("street", 30)
    code = fc.categorical_column_with_hash_bucket("code", 50, dtype="int64")
    text = fc.categorical_column_with_vocabulary_list("text", delimiter="|")
    rooms = fc.categorical_column_with_identity("rooms", 12)
    tags = fc.categorical_column_with_hash_bucket("tags", 20)
    weighted = fc.weighted_categorical_column(tags, "weights")
    size = fc.numeric_column("size", default_value="mean", normalizer="standard")
    wide = [
        city,
        street,
        fc.bucketized_column(size, np.linspace(-2, 2, 50).tolist()),
        fc.crossed_column(["city", "street"], 100),
        fc.crossed_column([rooms, city], 100),
    ]
    deep = [
        size,
        fc.indicator_column(text),
        fc.indicator_column(rooms),
        fc.embedding_column(street, 3),
        fc.embedding_column(code, 2, combiner="sqrtn"),
        fc.parsed_numeric_column("day", "weekday"),
        fc.embedding_column(tags, 2),
        fc.embedding_column(weighted, 3, combiner="sqrtn"),
        fc.indicator_column(weighted),
    ]
    return wide, deep


def targets():
    """Classes, numbers, and several of them."""
    rng = np.random.default_rng(1)
    kind = rng.choice(np.array(["nein", "vielleicht", "ja"], object), N_ROWS)
    price = rng.normal(5, 3, N_ROWS)
    return {
        "binary": price > 5,
        "classes": kind,
        "number": price,
        "count": rng.poisson(3, N_ROWS),
        "labels": rng.integers(0, 2, (N_ROWS, 3)),
        "several": pd.DataFrame({"kind": kind, "price": price}),
    }


class Mixed(nn.Module):
    """A network of the user's around columns, which torch traces."""

    def __init__(self, columns, n_logits):
        super().__init__()
        self.inputs = fc.DenseFeatures(columns)
        width = self.inputs.out_features
        self.cross = nn.Linear(width, width)
        self.deep = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.5))
        self.heads = nn.MultiheadAttention(width, 1, batch_first=True)
        self.logits = nn.Linear(width, n_logits)

    def forward(self, features):
        x = self.inputs(features)
        crossed = torch.stack([x * self.cross(x) + x, self.deep(x)], 1)
        attended, _ = self.heads(crossed, crossed, crossed)
        return self.logits(attended.mean(1))


def mixed_model_fn(features, labels, mode, params):
    """The loss and the logits are the user's, too."""
    network = Mixed(params["feature_columns"], params["n_classes"])
    return skest.EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: nn.functional.cross_entropy(z, y, reduction="none"),
        predictions=lambda z: {"probabilities": z.softmax(1)},
        optimizer=torch.optim.SGD(network.parameters(), lr=0.01),
    )


def mixed_number_model_fn(features, labels, mode, params):
    """The head is one of skest."""
    network = Mixed(params["feature_columns"], params["n_outputs"])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    return params["head"].create_estimator_spec(
        features, mode, network, labels, optimizer
    )


def traced_models():
    """As `models`, of which torch traces a part."""
    if importlib.util.find_spec("onnxscript") is None:
        return {}
    _, deep = columns()
    options = {"feature_columns": deep}
    return {
        "traced": (
            small(skest.ModelFnClassifier, model_fn=mixed_model_fn, **options),
            "classes",
        ),
        "traced, number": (
            small(skest.ModelFnRegressor, model_fn=mixed_number_model_fn, **options),
            "number",
        ),
    }


def models():
    """Estimators by name, each with the name of its target."""
    wide, deep = columns()
    steps = [
        fc.embedding_column(
            fc.sequence_categorical_column_with_vocabulary_list("visits"), 3
        ),
        fc.sequence_numeric_column("steps"),
    ]
    parts = {"linear_feature_columns": wide, "dnn_feature_columns": deep}
    all_deep = {"feature_columns": deep}
    dnn, both = skest.DNNClassifier, skest.DNNLinearCombinedClassifier
    return {
        "dnn, labels": (small(dnn, **all_deep), "labels"),
        "dnn, normalized": (
            small(dnn, **all_deep, batch_norm=True, activation="selu"),
            "binary",
        ),
        "linear, count": (
            small(skest.LinearRegressor, feature_columns=wide, loss="poisson"),
            "count",
        ),
        "wide & deep": (small(both, **parts), "binary"),
        "several heads": (small(skest.MultiHeadEstimator, **all_deep), "several"),
        "baseline": (small(skest.BaselineClassifier), "classes"),
        **{
            cell: (
                small(
                    skest.RNNClassifier, sequence_feature_columns=steps, cell_type=cell
                ),
                "classes",
            )
            for cell in ("simple_rnn", "lstm", "gru")
        },
        **traced_models(),
    }
