# SPDX-License-Identifier: Apache-2.0
"""Nets of skorch: as documented, and with what users write around them."""

from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import Tensor, nn

PACKAGES = ["skorch", "torch"]

N_FEATURES = {"classifier": 2, "regressor": 10}  # of scikit-learn's training checks
N_CLASSES = 3


class Classes(nn.Module):
    """A perceptron for one number of features and classes, as in the documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(N_FEATURES["classifier"], 16)
        self.output = nn.Linear(16, N_CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        return torch.softmax(self.output(torch.relu(self.dense(X))), dim=-1)


class Number(nn.Module):
    """The same for one number to predict."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(N_FEATURES["regressor"], 16)
        self.output = nn.Linear(16, 1)

    def forward(self, X: Tensor) -> Tensor:
        return self.output(torch.relu(self.dense(X)))


class AnyWidth(nn.Module):
    """A perceptron that finds the number of features by itself."""

    def __init__(self, n_outputs: int = 1) -> None:
        super().__init__()
        self.dense = nn.LazyLinear(16)
        self.output = nn.Linear(16, n_outputs)

    def forward(self, X: Tensor) -> Tensor:
        return self.output(torch.relu(self.dense(X.float())))


class AnyClasses(AnyWidth):
    """Probabilities; a class that is never seen is hardly predicted."""

    def __init__(self) -> None:
        super().__init__(n_outputs=5)

    def forward(self, X: Tensor) -> Tensor:
        return torch.softmax(super().forward(X), dim=-1)


class GluedClassifier(NeuralNetClassifier):
    """Seeds torch, and takes whatever NumPy can make numbers of."""

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Any:
        torch.manual_seed(0)
        return super().fit(np.asarray(X, dtype=np.float32), y, **fit_params)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(np.asarray(X, dtype=np.float32))


class GluedRegressor(NeuralNetRegressor):
    """The same, with labels of two dimensions inside and of one outside."""

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Any:
        torch.manual_seed(0)
        y = np.asarray(y, dtype=np.float32).reshape(len(y), -1)
        return super().fit(np.asarray(X, dtype=np.float32), y, **fit_params)

    def predict(self, X: Any) -> Any:
        return super().predict(np.asarray(X, dtype=np.float32)).ravel()


DOCUMENTED = {
    "optimizer": torch.optim.Adam,
    "lr": 0.01,
    "max_epochs": 40,
    "verbose": 0,
}
GLUED = {**DOCUMENTED, "train_split": None}
ESTIMATORS = {
    "skorch `NeuralNetClassifier`, documented": NeuralNetClassifier(
        Classes, **DOCUMENTED
    ),
    "skorch `NeuralNetRegressor`, documented": NeuralNetRegressor(Number, **DOCUMENTED),
    "skorch `NeuralNetClassifier`, with glue": GluedClassifier(AnyClasses, **GLUED),
    "skorch `NeuralNetRegressor`, with glue": GluedRegressor(AnyWidth, **GLUED),
}
