# SPDX-License-Identifier: Apache-2.0
"""`Combined`: a linear network and a DNN whose logits are added."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["Combined"]


class Combined(nn.Module):
    """Wide & deep: the sum of the logits of a linear network and a DNN.

    Parameters
    ----------
    linear : torch.nn.Module or None
        Gives logits from ``features["linear"]``.
    dnn : torch.nn.Module or None
        Gives logits from ``features["dnn"]``. One of both may be missing.
    mean_logits : callable, default=None
        If the DNN has members, see `skest.networks.DNN`; each has the linear network
        beside it.

    Raises
    ------
    ValueError
        If both are missing.

    Notes
    -----
    Cheng et al., "Wide & Deep Learning for Recommender Systems" (arXiv 1606.07792).
    """

    def __init__(
        self,
        linear: nn.Module | None,
        dnn: nn.Module | None,
        mean_logits: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if linear is None and dnn is None:
            raise ValueError("A Combined network needs a linear network or a DNN.")
        self.linear = linear
        self.dnn = dnn
        self.mean_logits = mean_logits

    def forward(self, features: Mapping[str, Any]) -> Tensor:
        """Return logits of shape (n_rows, logits_dimension)."""
        parts = [
            network(features[name])
            for name, network in (("linear", self.linear), ("dnn", self.dnn))
            if network is not None
        ]
        logits = sum(parts[1:], start=parts[0])
        if self.mean_logits is None or self.training:
            return logits
        return self.mean_logits(logits)
