# SPDX-License-Identifier: Apache-2.0
"""Temperature scaling: logits divided by one number, learned from held-out rows."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import chi2

__all__ = ["temperature_of"]

_RANGE = (-2.0, 2.0)  # of the logarithm
# Twice the log likelihood gained by a number without effect is above this in 5 %.
_LEAST_GAIN = float(chi2.ppf(0.95, 1))


def temperature_of(
    logits: NDArray[np.floating],
    labels: NDArray[np.integer],
    weight: NDArray[np.floating] | None = None,
) -> float:
    """Return the temperature with the least log loss, 1 unless it is clearly better.

    Parameters
    ----------
    logits : ndarray of shape (n_rows, 1) or (n_rows, n_classes)
        One column for two classes.
    labels : ndarray of int, shape (n_rows,)
        Classes.
    weight : ndarray of shape (n_rows,), default=None
        Weights of the rows.

    Returns
    -------
    float
        By which the logits are to be divided.

    Notes
    -----
    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017, arXiv 1706.04599).
    Few rows would calibrate by chance: the likelihood must rise by more than a number
    without effect makes it rise in 95 % of cases.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.adapters.temperature import temperature_of
    >>> logits = np.repeat([[8.0], [-8.0]], 100, axis=0)  # too sure: 90 % are right
    >>> labels = np.tile([1] * 9 + [0], 20) ^ np.repeat([0, 1], 100)
    >>> round(temperature_of(logits, labels), 2), temperature_of(logits[:9], labels[:9])
    (3.64, 1.0)
    """
    logits = np.asarray(logits, dtype=np.float64)
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    rows = np.arange(len(labels))
    weight = np.ones(len(labels)) if weight is None else weight / weight.mean()

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature), axis=1)
        return -float(weight @ scaled[rows, labels])

    found = minimize_scalar(loss, bounds=_RANGE, method="bounded")
    gained = 2 * (loss(0.0) - float(found.fun))
    return float(np.exp(found.x)) if gained > _LEAST_GAIN else 1.0
