# SPDX-License-Identifier: Apache-2.0
"""scikit-learn."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Predictor = Callable[[Any], np.ndarray]


def network(batch_size: int, n_epochs: int) -> MLPClassifier:
    """Return a network that trains for all epochs."""
    return MLPClassifier(
        (128, 64),
        batch_size=batch_size,
        max_iter=n_epochs,
        n_iter_no_change=n_epochs + 1,
        alpha=0.0,
        random_state=0,
    )


def fit_dense(
    X: np.ndarray, y: np.ndarray, batch_size: int, n_epochs: int
) -> Predictor:
    """Train a network on numbers."""
    return _fit(network(batch_size, n_epochs), X, y)


def one_hot(numbers: Sequence[str], strings: Sequence[str]) -> ColumnTransformer:
    """Return a transformer that scales numbers and turns strings into indicators."""
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
    return make_column_transformer((StandardScaler(), numbers), (hot, strings))


def fit_logistic(X: np.ndarray, y: np.ndarray) -> Predictor:
    """Train logistic regression until it has converged."""
    return _fit(LogisticRegression(max_iter=200), X, y)


def fit_linear(
    ids: dict[str, np.ndarray],
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    n_buckets: int,
) -> Predictor:
    """Train a linear model on one-hot ids, one row a step: it has no `batch_size`."""
    columns = [column + i * n_buckets for i, column in enumerate(ids.values())]
    hot = np.stack(columns, axis=1).ravel()
    starts = np.arange(0, len(hot) + 1, len(columns), dtype=np.int32)
    shape = (len(y), len(columns) * n_buckets)
    X = csr_array((np.ones(len(hot)), hot.astype(np.int32), starts), shape=shape)
    model = SGDClassifier("log_loss", max_iter=n_epochs, tol=None, random_state=0)
    return _fit(model, X, y)


def _fit(model: Any, X: Any, y: np.ndarray) -> Predictor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so many epochs, no more
        model.fit(X, y)
    return lambda X: model.predict_proba(X)[:, 1]
