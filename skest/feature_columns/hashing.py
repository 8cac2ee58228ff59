# SPDX-License-Identifier: Apache-2.0
"""Hashes of distinct values, equal on every machine and in ONNX Runtime.

Strings are hashed with MurmurHash3_x86_32 of their UTF-8 bytes, the function of
`sklearn.utils.murmurhash3_32` and of ONNX Runtime's operator ``MurmurHash3``; TensorFlow
has FarmHash there, so buckets of strings differ from those of ``tf.feature_column``.
64-bit keys are combined by `skest._hashes.fingerprint_cat64` as in TensorFlow, so crosses
of integers are equal.
"""

from itertools import repeat

import numpy as np
from sklearn.utils import murmurhash3_32

__all__ = [
    "DEFAULT_HASH_KEY",
    "bucket_ids",
    "int64_keys",
    "string_hashes",
    "string_to_int64keys",
]

DEFAULT_HASH_KEY = 0xDECAFCAFFE


def string_hashes(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Hash distinct strings to unsigned 32-bit numbers.

    Parameters
    ----------
    values : ndarray of str, shape (n,)
        Dtype object.
    seed : int, default=0
        Seed of the hash function.

    Returns
    -------
    ndarray of uint64, shape (n,)

    Raises
    ------
    ValueError
        If a string cannot be written as UTF-8 (it holds a lone surrogate).

    Examples
    --------
    >>> import numpy as np
    >>> string_hashes(np.array(["a", "b"], dtype=object))
    array([1009084850, 2514386435], dtype=uint64)
    """
    hashes = map(murmurhash3_32, values.tolist(), repeat(seed), repeat(True))
    try:
        return np.fromiter(hashes, dtype=np.uint64, count=len(values))
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The string {error.object!r} is not valid Unicode (it holds a lone "
            "surrogate) and cannot be hashed. Clean the column."
        ) from error


def string_to_int64keys(values: np.ndarray) -> np.ndarray:
    """Hash distinct strings to 64 bits: two 32-bit hashes with the seeds 0 and 1."""
    return string_hashes(values, 0) | (string_hashes(values, 1) << np.uint64(32))


def int64_keys(values: np.ndarray) -> np.ndarray:
    """64-bit keys of distinct values, uint64: hashes of strings, integers as they are."""
    if values.dtype == object:
        return string_to_int64keys(values)
    return values.astype(np.int64).view(np.uint64)


def bucket_ids(values: np.ndarray, n_buckets: int) -> np.ndarray:
    """Give distinct values a bucket each.

    Integers are hashed as their decimal string, as in TensorFlow, so 7 and "7" agree.

    Parameters
    ----------
    values : ndarray of str (dtype object) or of integers, shape (n,)
        The values.
    n_buckets : int
        Number of buckets.

    Returns
    -------
    ndarray of int64, shape (n,)
        Buckets from 0 to ``n_buckets - 1``.

    Examples
    --------
    >>> import numpy as np
    >>> bucket_ids(np.array([7]), 100) == bucket_ids(np.array(["7"], dtype=object), 100)
    array([ True])
    """
    if values.dtype != object:
        values = np.array([str(value) for value in values.tolist()], dtype=object)
    return (string_hashes(values) % np.uint64(n_buckets)).astype(np.int64)
