# SPDX-License-Identifier: Apache-2.0
"""skest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from skest import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    LinearClassifier,
    RunConfig,
)
from skest import feature_columns as fc

HIDDEN = (128, 64)
Predictor = Callable[[Any], np.ndarray]


def options(
    batch_size: int, n_epochs: int, execution: Any = "auto", device: str = "cpu"
) -> dict[str, Any]:
    """Return arguments of an estimator that never stops early and writes no logs."""
    return {
        "batch_size": batch_size,
        "max_iter": n_epochs,
        "early_stopping": False,
        "n_iter_no_change": np.inf,
        "random_state": 0,
        "execution": execution,
        "device": device,
        "config": RunConfig(log_step_count_steps=None),
    }


def network(batch_size: int, n_epochs: int, **where: Any) -> DNNClassifier:
    """Return a network."""
    return DNNClassifier(
        HIDDEN,
        optimizer="adam",
        learning_rate=1e-3,
        **options(batch_size, n_epochs, **where),
    )


def fit_dense(
    X: Any, y: np.ndarray, batch_size: int, n_epochs: int, **where: Any
) -> Predictor:
    """Train a network on numbers, an array or a DataFrame."""
    return _predictor(network(batch_size, n_epochs, **where).fit(X, y))


def fit_one_hot(
    X: pd.DataFrame,
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    numbers: Sequence[str],
    strings: Sequence[str],
) -> Predictor:
    """Train a network on scaled numbers and strings turned into indicators."""
    model = one_hot_network(batch_size, n_epochs, numbers, strings)
    return _predictor(model.fit(X, y))


def one_hot_network(
    batch_size: int, n_epochs: int, numbers: Sequence[str], strings: Sequence[str]
) -> DNNClassifier:
    """Return a network on scaled numbers and strings turned into indicators."""
    columns: list[Any] = [fc.numeric_column(n, normalizer="standard") for n in numbers]
    for name in strings:
        categories = fc.categorical_column_with_vocabulary_list(name)
        columns.append(fc.indicator_column(categories))
    return network(batch_size, n_epochs).set_params(feature_columns=columns)


def fit_wide_deep(
    table: pd.DataFrame,
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    encoding: dict[str, Any],
    linear_optimizer: str = "adagrad",
    **where: Any,
) -> None:
    """Train wide & deep on the table as it is."""
    numbers = [
        fc.numeric_column(name, normalizer="standard") for name in encoding["numbers"]
    ]
    categories = [
        fc.categorical_column_with_vocabulary_list(name) for name in encoding["strings"]
    ]
    cross = fc.crossed_column(list(encoding["crossed"]), encoding["n_buckets"])
    embedded = [fc.embedding_column(column, "auto") for column in categories]
    DNNLinearCombinedClassifier(
        HIDDEN,
        linear_feature_columns=[*numbers, *categories, cross],
        dnn_feature_columns=[*numbers, *embedded],
        dnn_optimizer="adagrad",
        dnn_learning_rate=0.05,
        linear_optimizer=linear_optimizer,
        **options(batch_size, n_epochs, **where),
    ).fit(table, y)


def fit_linear(
    ids: dict[str, np.ndarray],
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    n_buckets: int,
    **where: Any,
) -> None:
    """Train a linear model with FTRL."""
    columns = [fc.categorical_column_with_identity(name, n_buckets) for name in ids]
    LinearClassifier(
        feature_columns=columns,
        optimizer="ftrl",
        **options(batch_size, n_epochs, **where),
    ).fit(pd.DataFrame(ids), y)


def _predictor(model: DNNClassifier) -> Predictor:
    return lambda X: model.predict_proba(X)[:, 1]
