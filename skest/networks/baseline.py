# SPDX-License-Identifier: Apache-2.0
"""`Baseline`: the same logits for every row."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["Baseline"]


class Baseline(nn.Module):
    """One bias vector, which starts at zero; of the features only the rows count.

    Parameters
    ----------
    logits_dimension : int
        Width of the output.
    dtype : torch.dtype, default=torch.float32
        Floating type of the bias.

    Notes
    -----
    As the model of ``tf.estimator.BaselineEstimator``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.baseline import Baseline
    >>> Baseline(2)({"rows": torch.empty(3, 0)}).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self, logits_dimension: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(logits_dimension, dtype=dtype))

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return logits of shape (n_rows, logits_dimension).

        Parameters
        ----------
        features : dict of str to Tensor
            Has "rows", of shape (n_rows, ...).
        """
        return self.bias.expand(features["rows"].shape[0], -1)
