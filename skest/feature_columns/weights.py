# SPDX-License-Identifier: Apache-2.0
"""`summable`: weights whose sums are exact."""

import numpy as np

__all__ = ["summable"]


def summable(weights: np.ndarray) -> np.ndarray:
    """Round weights to multiples of one power of two, so that no sum of them is rounded.

    What is learned by comparing sums then depends on the weights alone: not on the order
    of the rows, and for equal weights, such as 0.1, not on their size.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        Numbers of 0 or more, at least one.

    Returns
    -------
    ndarray of float64, shape (n,)
        They differ from `weights` by at most about ``n * 2**-52`` of the largest one.
        Integers are themselves, up to a sum of 2**51.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.weights import summable
    >>> weights = np.array([0.1, 0.2, 0.3, 0.3, 0.2, 0.1])
    >>> bool(weights[:3].sum() == weights[3:].sum())
    False
    >>> weights = summable(weights)
    >>> bool(weights[:3].sum() == weights[3:].sum())
    True
    """
    _, exponent = np.frexp(weights.max())
    shift = 52 - len(weights).bit_length() - exponent  # of each sum to less than 2**52
    return np.ldexp(np.rint(np.ldexp(weights, shift)), -shift)
