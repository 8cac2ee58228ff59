# SPDX-License-Identifier: Apache-2.0
"""Hashes in an ONNX graph, equal to those of `skest.feature_columns.hashing`."""

import numpy as np

from skest._hashes import MULTIPLIER, SHIFT
from skest.export.graph import STRING, Value

__all__ = ["bucket_ids", "fingerprint_cat64", "int64_keys", "unsigned_remainder"]

# Before 1.20, ONNX Runtime multiplies no uint64; the bits of the product are the same.
_MULTIPLIER = MULTIPLIER.astype(np.int64)


def bucket_ids(values: Value, n_buckets: int) -> Value:
    """Give strings, or integers as their decimal strings, a bucket each.

    As `skest.feature_columns.hashing.bucket_ids`.
    """
    return _string_hashes(values.cast(STRING)).cast(np.int64) % n_buckets


def int64_keys(values: Value) -> Value:
    """Return the 64-bit keys of strings or integers, the bits as int64.

    As `skest.feature_columns.hashing.int64_keys`.
    """
    if values.dtype != STRING:
        return values
    low, high = (_string_hashes(values, seed).cast(np.uint64) for seed in (0, 1))
    return (low | high.shifted(32, "LEFT")).cast(np.int64)


def fingerprint_cat64(a: Value, b: Value) -> Value:
    """Combine 64-bit fingerprints, the bits as int64, to one.

    As `skest.feature_columns.hashing.fingerprint_cat64`.
    """
    result = (a ^ _MULTIPLIER) ^ (_shift_mix(b * _MULTIPLIER) * _MULTIPLIER)
    result = result * _MULTIPLIER
    return _shift_mix(_shift_mix(result) * _MULTIPLIER)


def unsigned_remainder(values: Value, divisor: int) -> Value:
    """Return the remainder of int64, read as uint64, as int64."""
    return (values.cast(np.uint64) % divisor).cast(np.int64)


def _string_hashes(values: Value, seed: int = 0) -> Value:
    return values.graph.add(
        "MurmurHash3",
        values,
        domain="com.microsoft",
        dtype=np.uint32,
        seed=seed,
        positive=1,
    )


def _shift_mix(value: Value) -> Value:
    bits = value.cast(np.uint64)
    return (bits ^ bits.shifted(int(SHIFT), "RIGHT")).cast(np.int64)
