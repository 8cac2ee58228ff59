# SPDX-License-Identifier: Apache-2.0
"""Model functions that the tests of `ModelFnClassifier` and `…Regressor` share."""

from collections.abc import Mapping

import torch
from torch import nn

from skest import EstimatorSpec


class Mlp(nn.Sequential):
    """A perceptron on an array, or on columns of numbers side by side."""

    def __init__(self, features, units, n_logits):
        width = len(features) if isinstance(features, Mapping) else features.shape[1]
        super().__init__(nn.Linear(width, units), nn.Tanh(), nn.Linear(units, n_logits))

    def forward(self, features):
        if isinstance(features, Mapping):
            features = torch.stack(list(features.values()), dim=1)
        return super().forward(features.to(self[0].weight.dtype))


def with_head(features, labels, mode, params):
    """The head says the loss and the predictions."""
    head = params["head"]
    network = Mlp(features, params.get("units", 16), head.logits_dimension)
    optimizer = torch.optim.Adam(network.parameters(), lr=params.get("lr", 0.05))
    return head.create_estimator_spec(
        features, mode, network, labels=labels, optimizer=optimizer
    )


def classes(features, labels, mode, params):
    """A class or several labels per row, with losses of its own."""
    network = Mlp(features, params.get("units", 16), params["n_classes"])
    return EstimatorSpec(
        mode,
        network=network,
        loss=class_losses,
        predictions=lambda z: {"logits": z},
        optimizer=torch.optim.Adam(network.parameters(), lr=params.get("lr", 0.05)),
    )


def class_losses(labels, logits, features):
    """Return one number for each row, or for each label of each row."""
    if labels.ndim == 2:
        return nn.functional.binary_cross_entropy_with_logits(
            logits, labels.to(logits), reduction="none"
        )
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def numbers(features, labels, mode, params):
    """One or several numbers per row, with a loss of its own."""
    n_outputs = params["n_outputs"]
    network = Mlp(features, params.get("units", 16), n_outputs)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: (y.reshape(len(y), n_outputs) - z) ** 2,
        predictions=lambda z: {"predictions": z},
        optimizer=torch.optim.Adam(network.parameters(), lr=params.get("lr", 0.05)),
    )
