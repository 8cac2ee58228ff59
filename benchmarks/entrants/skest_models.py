# SPDX-License-Identifier: Apache-2.0
"""All public estimators of skest, as they are constructed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import skest

PACKAGES = ["torch"]


class Perceptron(nn.Sequential):
    """Takes an array, or the columns of a frame."""

    def __init__(self, features: Any, n_logits: int) -> None:
        width = len(features) if isinstance(features, Mapping) else features.shape[1]
        super().__init__(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, n_logits))

    def forward(self, features: Any) -> Tensor:
        if isinstance(features, Mapping):
            features = torch.stack(list(features.values()), dim=1)
        return super().forward(features.to(self[0].weight.dtype))


def perceptron(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Describe a model for the estimators that have none."""
    head = params["head"]
    network = Perceptron(features, head.logits_dimension)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    return head.create_estimator_spec(
        features, mode, network, labels=labels, optimizer=optimizer
    )


def constructed(name: str) -> Any:
    """Return an estimator without parameters, but for the model that it must have."""
    cls = getattr(skest, name)
    return cls(perceptron) if name.startswith("ModelFn") else cls()


ESTIMATORS = {
    f"`{name}`": constructed(name)
    for name in skest.__all__
    if hasattr(getattr(skest, name), "fit")
}
