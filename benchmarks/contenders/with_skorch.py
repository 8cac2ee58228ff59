# SPDX-License-Identifier: Apache-2.0
"""skorch, with the networks that are written by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetBinaryClassifier
from torch import Tensor, nn

from benchmarks.contenders import by_hand

Predictor = Callable[[Any], np.ndarray]


class Flat(nn.Module):
    """A network with logits of shape (n_rows,), as skorch wants them."""

    def __init__(self, make: Callable[..., nn.Module], **arguments: Any) -> None:
        super().__init__()
        self.network = make(**arguments)

    def forward(self, *columns: Tensor, **named: Tensor) -> Tensor:
        """Return logits."""
        return self.network(*columns, **named)[:, 0]


def classifier(
    make: Callable[..., nn.Module], arguments: dict[str, Any], **options: Any
) -> NeuralNetBinaryClassifier:
    """Return a classifier that keeps no rows for validation and prints nothing."""
    return NeuralNetBinaryClassifier(
        Flat,
        module__make=make,
        **{f"module__{name}": value for name, value in arguments.items()},
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
        **options,
    )


def network(n_inputs: int, batch_size: int, n_epochs: int) -> NeuralNetBinaryClassifier:
    """Return a network of numbers."""
    return classifier(
        by_hand.mlp,
        {"n_inputs": n_inputs},
        optimizer=torch.optim.Adam,
        optimizer__fused=True,
        lr=1e-3,
        batch_size=batch_size,
        max_epochs=n_epochs,
    )


def fit_dense(
    X: np.ndarray, y: np.ndarray, batch_size: int, n_epochs: int
) -> Predictor:
    """Train a network on numbers."""
    torch.manual_seed(0)
    model = network(X.shape[1], batch_size, n_epochs).fit(X, y.astype(np.float32))
    return lambda X: model.predict_proba(X)[:, 1]


def fit_wide_deep(
    table: pd.DataFrame,
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    encoding: dict[str, Any],
) -> None:
    """Train wide & deep on what is encoded by hand."""
    torch.manual_seed(0)
    numbers, ids, levels = by_hand.encode(table, **encoding)
    size, n_numbers = encoding["n_buckets"], numbers.shape[1]
    classifier(
        by_hand.WideAndDeep,
        {"levels": levels, "n_crossed": size, "n_numbers": n_numbers},
        optimizer=torch.optim.Adagrad,
        lr=0.05,
        batch_size=batch_size,
        max_epochs=n_epochs,
    ).fit({"numbers": numbers, "ids": ids}, y.astype(np.float32))
