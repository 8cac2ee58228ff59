# SPDX-License-Identifier: Apache-2.0
"""The model of `benchmarks.serve` in skest, scikit-learn and tf.estimator.

It takes 25 raw values, 20 numbers and 5 texts of 50 to 10,000 levels, and has layers of
128 and 64 and two classes. How well it was trained does not matter here.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import peers
from skest import DNNClassifier
from skest import feature_columns as fc

NUMBERS = [f"number_{i}" for i in range(20)]
LEVELS = {"city": 50, "job": 100, "shop": 1_000, "street": 5_000, "item": 10_000}
HIDDEN = (128, 64)
N_TRAINING_ROWS = 20_000


def columns(n_rows: int) -> dict[str, list[Any]]:
    """Return raw values, among them texts that the model does not know."""
    rng = np.random.default_rng(0)
    table: dict[str, list[Any]] = {
        name: rng.normal(size=n_rows).round(3).tolist() for name in NUMBERS
    }
    for name, n_levels in LEVELS.items():
        picked = rng.integers(0, n_levels * 11 // 10, n_rows)
        table[name] = [f"{name}_{level}" for level in picked]
    return table


def levels() -> dict[str, list[str]]:
    """Return the texts that the model knows."""
    return {name: [f"{name}_{i}" for i in range(n)] for name, n in LEVELS.items()}


def training_rows() -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table and labels 0 and 1."""
    X = pd.DataFrame(columns(N_TRAINING_ROWS))
    return X, (X["number_0"] > 0).to_numpy().astype(int)


def dimension(n_levels: int) -> int:
    """Return the size of the vectors of a column of texts."""
    return min(16, round(6 * n_levels**0.25))


def of_skest() -> DNNClassifier:
    """Return the fitted model."""
    deep: list[Any] = [fc.numeric_column(n, normalizer="standard") for n in NUMBERS]
    for name, words in levels().items():
        known = fc.categorical_column_with_vocabulary_list(name, words)
        deep.append(fc.embedding_column(known, dimension(len(words))))
    model = DNNClassifier(
        HIDDEN,
        feature_columns=deep,
        optimizer="adagrad",
        learning_rate=0.05,
        max_steps=20,
        random_state=0,
        dtype="float32",
    )
    return model.fit(*training_rows())


def of_sklearn() -> Any:
    """Return the fitted Pipeline that a user of scikit-learn has instead."""
    from sklearn.compose import make_column_transformer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    encoder = make_column_transformer(
        (StandardScaler(), NUMBERS),
        (OneHotEncoder(handle_unknown="ignore"), list(LEVELS)),
    )
    mlp = MLPClassifier(HIDDEN, max_iter=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one epoch does not converge
        return make_pipeline(encoder, mlp).fit(*training_rows())


def of_tensorflow(n_rows: int, repeats: int) -> dict[str, float]:
    """Return milliseconds of the raw signature of tf.estimator, and of an export.

    Raises
    ------
    RuntimeError
        If TensorFlow 2.15 cannot be installed or run.
    """
    arguments = {
        "levels": levels(),
        "dimensions": {name: dimension(n) for name, n in LEVELS.items()},
        "hidden": HIDDEN,
        "rows": columns(n_rows),
        "repeats": repeats,
    }
    return peers.run(peers.TENSORFLOW, "serve_estimator.py", arguments)
