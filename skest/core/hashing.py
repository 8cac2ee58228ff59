# SPDX-License-Identifier: Apache-2.0
"""Hash functions in NumPy alone, for exported models run without scikit-learn.

`murmurhash3_32` is the function of `sklearn.utils.murmurhash3_32`, of many strings at
once. `fingerprint_cat64` is TensorFlow's ``FingerprintCat64``
(``tensorflow/core/platform/fingerprint.h``).
"""

from collections.abc import Sequence

import numpy as np

MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)
SHIFT = np.uint64(47)


def murmurhash3_32(values: Sequence[str], seed: int = 0) -> np.ndarray:
    """Hash strings with MurmurHash3_x86_32 of their UTF-8 bytes.

    Parameters
    ----------
    values : sequence of str
        The strings.
    seed : int, default=0
        Seed of the hash function, 0 to 2**32 - 1.

    Returns
    -------
    ndarray of uint32, shape (n,)

    Examples
    --------
    >>> murmurhash3_32(["a", "b"])
    array([1009084850, 2514386435], dtype=uint32)
    """
    texts = [value.encode() for value in values]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    # Longest first, so that those with a further block are always the first ones.
    order = np.argsort(-lengths, kind="stable")
    lengths = lengths[order]
    padded = [texts[i] + bytes(-len(texts[i]) % 4) for i in order.tolist()]
    mixed = _mixed(np.frombuffer(b"".join(padded), "<u4").astype(np.uint32))
    n_blocks, n_words = lengths // 4, -(-lengths // 4)
    starts = np.cumsum(n_words) - n_words
    hashes = np.full(len(texts), seed, np.uint32)
    counts = np.searchsorted(-n_blocks, -np.arange(n_blocks.max(initial=0)), "left")
    for at, count in enumerate(counts.tolist()):
        block = hashes[:count] ^ mixed[starts[:count] + at]
        hashes[:count] = _rotated(block, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    has_tail = n_words > n_blocks
    hashes[has_tail] ^= mixed[(starts + n_blocks)[has_tail]]
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _mixed(words: np.ndarray) -> np.ndarray:
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(words: np.ndarray, n_bits: int) -> np.ndarray:
    return (words << np.uint32(n_bits)) | (words >> np.uint32(32 - n_bits))


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
