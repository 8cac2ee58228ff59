# SPDX-License-Identifier: Apache-2.0
"""What tests of callbacks and of the bridge to skorch compare."""

import numpy as np
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from skorch import NeuralNetClassifier
from torch import nn

from skest import Estimator
from skest.inputs import ArrayDataset

IRIS = load_iris(return_X_y=True)
IRIS_32 = (scale(IRIS[0]).astype(np.float32), IRIS[1])


def small_net(**params):
    """A net whose weights are given, so that skorch and skest begin alike."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    given = {
        "criterion": nn.CrossEntropyLoss,
        "optimizer": torch.optim.Adam,
        "lr": 0.01,
        "batch_size": 32,
        "train_split": None,
        "verbose": 0,
        **params,
    }
    return NeuralNetClassifier(module, **given)


def table_fn(X=IRIS_32[0], y=IRIS_32[1], num_epochs=1):
    """Return an input function, by default of one epoch of iris."""
    return lambda: ArrayDataset(X, y, batch_size=32, num_epochs=num_epochs)


def predictions(estimator, key, X=IRIS_32[0]):
    """Return a prediction of an Estimator for all rows."""
    return np.stack([row[key] for row in estimator.predict(table_fn(X, None))])


def variables(model):
    """Return the trained variables by name."""
    core = model if isinstance(model, Estimator) else model.estimator_
    return core.checkpoint.variables


def assert_same_variables(a, b):
    a, b = variables(a), variables(b)
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert (value == b[name]).all(), name
