# SPDX-License-Identifier: Apache-2.0
"""
A model of your own in a search
===============================

A model function of eight lines, the classifier that it makes, and its boundary between
two half moons.
"""

from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.model_selection import GridSearchCV

import skest

X, y = make_moons(600, noise=0.2, random_state=0)


def model_fn(
    features: torch.Tensor, labels: Any, mode: skest.ModeKeys, params: dict[str, Any]
) -> Any:
    """A network with one hidden layer of sines."""
    network = torch.nn.Sequential(
        torch.nn.Linear(features.shape[1], params["units"]),
        Sine(),
        torch.nn.Linear(params["units"], params["head"].logits_dimension),
    )
    adam = torch.optim.Adam(network.parameters(), lr=0.02)
    return params["head"].create_estimator_spec(features, mode, network, labels, adam)


class Sine(torch.nn.Module):
    """The sine, which torch has as a function only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


# %%
# A search reaches the parameters of the function.
model = skest.ModelFnClassifier(
    model_fn, params={"units": 2}, max_iter=15, batch_size=50, random_state=0
)
search = GridSearchCV(model, {"params__units": [2, 32]}, cv=3).fit(X, y)
print(search.best_params_, f"accuracy {search.best_score_:.3f}")

# %%
figure, ax = plt.subplots(figsize=(6, 4))
DecisionBoundaryDisplay.from_estimator(
    search, X, response_method="predict_proba", ax=ax, cmap="RdBu", alpha=0.7
)
ax.scatter(X[:, 0], X[:, 1], c=y, s=8, cmap="RdBu", edgecolors="k", linewidths=0.3)
figure.tight_layout()
plt.show()
