# SPDX-License-Identifier: Apache-2.0
"""`fingerprint_cat64`: TensorFlow's ``FingerprintCat64``, which hashes crossed columns.

See ``tensorflow/core/platform/fingerprint.h``; an exported graph has the same operations.
"""

import numpy as np

MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)
SHIFT = np.uint64(47)


def fingerprint_cat64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Combine two 64-bit fingerprints to one; the order matters.

    Parameters
    ----------
    a, b : ndarray of uint64
        Arrays whose shapes broadcast.

    Returns
    -------
    ndarray of uint64

    Examples
    --------
    >>> import numpy as np
    >>> fingerprint_cat64(np.array([1], np.uint64), np.array([2], np.uint64))
    array([14454907135238785252], dtype=uint64)
    """
    result = (a ^ MULTIPLIER) ^ (_shift_mix(b * MULTIPLIER) * MULTIPLIER)
    result *= MULTIPLIER
    return _shift_mix(_shift_mix(result) * MULTIPLIER)


def _shift_mix(value: np.ndarray) -> np.ndarray:
    return value ^ (value >> SHIFT)
