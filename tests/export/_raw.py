# SPDX-License-Identifier: Apache-2.0
"""Raw columns with all that is hard about them."""

import functools

import numpy as np

INT64 = np.iinfo(np.int64)
HARD_STRINGS = (
    "",
    "\0",
    "a\0b",
    "é",
    "e\u0301",
    "\U0001d518",
    "x" * 300,
    "7",
    "-7",
    "a",
    "b",
)
HARD_INTEGERS = (INT64.max, INT64.min + 1, 2**62, -(2**53) - 1, -1, 0, 7)
_LARGEST_CODE = 0x110000
_SURROGATES = range(0xD800, 0xE000)


def strings(rng, n):
    """Random Unicode of any plane, hard strings and missing ones."""
    codes = rng.integers(0, _LARGEST_CODE, (n, 10))
    codes = np.where(rng.random((n, 10)) < 0.5, codes % 128, codes)
    codes[(codes >= _SURROGATES.start) & (codes < _SURROGATES.stop)] = 0xE9
    lengths = rng.integers(0, 11, n)
    values = np.empty(n, dtype=object)
    values[:] = [
        "".join(map(chr, row[:length]))
        for row, length in zip(codes.tolist(), lengths, strict=True)
    ]
    hard = rng.random(n) < 0.4
    values[hard] = rng.choice(np.array(HARD_STRINGS, dtype=object), hard.sum())
    values[rng.random(n) < 0.1] = None
    return values


def integers(rng, n):
    """Small, hard and random ones of 64 bits; not the least, which a cross lacks."""
    values = rng.integers(-5, 12, n)
    for share, others in (
        (0.2, rng.integers(INT64.min + 1, INT64.max, n)),
        (0.2, rng.choice(np.array(HARD_INTEGERS), n)),
    ):
        values = np.where(rng.random(n) < share, others, values)
    return values


def bags(rng, n, values):
    """Lists of 0 to 9 values each."""
    cells = np.empty(n, dtype=object)
    found = values(rng, 9 * n).reshape(n, 9)
    lengths = rng.integers(0, 10, n)
    cells[:] = [row[:k].tolist() for row, k in zip(found, lengths, strict=True)]
    return cells


def texts(rng, n):
    """Strings of values between bars, some of them empty."""
    values = np.empty(n, dtype=object)
    values[:] = ["|".join(cell) for cell in bags(rng, n, _letters)]
    return values


def _letters(rng, n):
    return rng.choice(np.array(["a", "b", "", "c"], dtype=object), n)


@functools.cache
def raw_columns(n, seed=0):
    """A column of every kind; treat it as read-only."""
    rng = np.random.default_rng(seed)
    number = rng.normal(size=n)
    number[rng.random(n) < 0.1] = np.nan
    words = bags(rng, n, strings)
    weights = np.empty(n, dtype=object)
    weights[:] = [rng.normal(size=len(cell)).tolist() for cell in words]
    steps = np.empty(n, dtype=object)
    steps[:] = [rng.normal(size=k).tolist() for k in rng.integers(0, 6, n)]
    return {
        "string": strings(rng, n),
        "integer": integers(rng, n),
        "month": rng.integers(0, 12, n),
        "words": words,
        "numbers": bags(rng, n, integers),
        "text": texts(rng, n),
        "float": number,
        "vector": rng.normal(size=(n, 3)).astype(np.float32),
        "matrix": rng.normal(size=(n, 2, 2)),
        "weights": weights,
        "steps": steps,
    }
