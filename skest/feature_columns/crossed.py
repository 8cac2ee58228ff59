# SPDX-License-Identifier: Apache-2.0
"""`crossed_column`: combinations of categories, hashed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skest.core.checks import check_integer
from skest.feature_columns.base import CategoricalColumn, FittedPart, innermost
from skest.feature_columns.categorical import (
    DEFAULT_HASH_KEY,
    HashBucketColumn,
    int64_keys,
)
from skest.feature_columns.sources import is_key
from skest.feature_columns.table import Key, Table

_LARGEST_SIZE = 2**63


def crossed_column(
    keys: Sequence[str | CategoricalColumn],
    hash_bucket_size: int,
    hash_key: int | None = None,
) -> "CrossedColumn":
    """Cross two or more categories: their combinations, hashed to buckets.

    A row has no id where one of the crossed values is missing: None, NaN, "" or a cell
    without value of a categorical column. Cells with several values are crossed each
    with each.

    Parameters
    ----------
    keys : list or tuple of str or CategoricalColumn
        Names of raw columns, or columns made by
        `categorical_column_with_vocabulary_list`, `categorical_column_with_identity`,
        `bucketized_column` or `crossed_column` (whose keys are taken for it). The order
        matters for the hash. An integer of a raw column is a value even if it is -1.
        `set_params` replaces the list as a whole and reaches no column inside.
    hash_bucket_size : int
        Number of buckets.
    hash_key : int or None, default=None
        Where the chain of hashes starts; None is TensorFlow's 0xDECAFCAFFE.

    Returns
    -------
    CrossedColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    Equal to ``tf.feature_column.crossed_column`` for integers and categorical columns.
    Strings are hashed with another function, so their buckets differ, and TensorFlow
    crosses a dense "".

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import crossed_column
    >>> column = crossed_column(["day", "hour"], 1000)
    >>> X = {"day": np.array([1, 1]), "hour": np.array([8, 9])}
    >>> column.encode(X)["day_X_hour_ids"].shape
    (2, 1)
    """
    return CrossedColumn(keys, hash_bucket_size, hash_key).validated()


@dataclass(eq=False, repr=False)
class CrossedColumn(CategoricalColumn):
    """Column made by `crossed_column`, where the parameters are documented.

    Attributes
    ----------
    keys_ : list of str or CategoricalColumn
        The keys, nested crosses flattened, with fitted columns.
    """

    _keys = FittedPart("keys")

    keys: Sequence[str | CategoricalColumn]
    hash_bucket_size: int
    hash_key: int | None = None

    @property
    def name(self) -> str:
        """Sorted names of what is crossed, joined by ``_X_``."""
        names = (k.name if _is_column(k) else str(k) for k in _leaves(self.keys))
        return "_X_".join(sorted(names))

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of all raw columns that are crossed."""
        return tuple(
            raw
            for key in _leaves(self.keys)
            for raw in (key.feature_keys if _is_column(key) else (key,))
        )

    @property
    def num_buckets(self) -> int:
        """The parameter `hash_bucket_size`."""
        return self.hash_bucket_size

    @property
    def has_inverse(self) -> bool:
        """False: several values may share a bucket."""
        return False

    def _validate(self) -> None:
        if not isinstance(self.keys, list | tuple):
            raise TypeError(
                "'keys' of a crossed column must be a list or tuple of names or "
                f"categorical columns, whose order counts; got {self.keys!r}."
            )
        if len(self.keys) < 2:
            raise ValueError(
                "'keys' of a crossed column must be two or more names or categorical "
                f"columns; got {self.keys!r}."
            )
        for key in self.keys:
            self._validate_key(key)
        owner = f"crossed column {self.name!r}"
        check_integer(self.hash_bucket_size, "hash_bucket_size", owner, minimum=1)
        if self.hash_bucket_size > _LARGEST_SIZE:
            raise ValueError(
                f"'hash_bucket_size' of {owner} must be at most 2**63, so that ids have "
                f"64 bits; got {self.hash_bucket_size}."
            )
        if self.hash_key is not None:
            check_integer(self.hash_key, "hash_key", owner, minimum=0)
            if self.hash_key >= 2**64:
                raise ValueError(
                    f"'hash_key' of {owner} must be less than 2**64; got {self.hash_key}."
                )

    def _validate_key(self, key: Any) -> None:
        source = innermost(key)
        if isinstance(source, HashBucketColumn):
            raise ValueError(
                f"'keys' of a crossed column must not hold the hash bucket column "
                f"{source.name!r}: hashing twice makes more values meet in one bucket. "
                f"Use the name {source.key!r} itself."
            )
        if isinstance(key, CategoricalColumn) and key.weight_key is not None:
            raise ValueError(
                f"'keys' of a crossed column must not hold {key.name!r}, whose values have "
                "weights or are numbers, since combinations have none. Cross a column "
                "without weights; weights for the cross itself are given by "
                "weighted_categorical_column(crossed_column(...), ...), and numbers are "
                "cut with bucketized_column."
            )
        if isinstance(key, CategoricalColumn):
            key.validated()
        elif not is_key(key):
            raise TypeError(
                "'keys' of a crossed column must be names of raw columns or categorical "
                f"columns; got {key!r}. Cut numbers with bucketized_column first."
            )

    def _learn(self, table: Table, sample_weight: np.ndarray | None) -> dict[str, Any]:
        fitted = [
            key.fitted(table, sample_weight) if _is_column(key) else key
            for key in _leaves(self.keys)
        ]
        return {"keys_": fitted}

    @property
    def hashed_keys(self) -> list[str | CategoricalColumn]:
        """Fitted columns and names of raw columns, in the order of the chain of hashes."""
        leaves = list(_leaves(self._keys))
        # TensorFlow's SparseCross takes its sparse inputs, the columns, before the dense.
        columns = [key for key in leaves if _is_column(key)]
        return columns + [key for key in leaves if not _is_column(key)]

    @property
    def first_hash(self) -> np.ndarray:
        """Where the chain of hashes starts, uint64 of shape (1,)."""
        start = DEFAULT_HASH_KEY if self.hash_key is None else self.hash_key
        return np.array([start], dtype=np.uint64)

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the buckets of all combinations, cells with several values flat."""
        first, *others = (_int64_keys_of(key, table) for key in self.hashed_keys)
        keys, codes, present = first
        hashes = fingerprint_cat64(self.first_hash, keys)
        for keys, key_codes, has_value in others:
            hashes, codes = _combined(hashes, codes, keys, key_codes)
            present = present[:, :, np.newaxis] & has_value[:, np.newaxis]
            present = present.reshape(table.n_rows, -1)
        buckets = (hashes % np.uint64(self.hash_bucket_size)).astype(np.int64)
        ids = buckets.take(codes, mode="wrap")
        ids[~present] = -1
        return ids, present


def _combined(
    hashes: np.ndarray, codes: np.ndarray, keys: np.ndarray, key_codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Combine each hash of a row with each key of it, every different pair once.

    Where there are more different pairs than rows, every cell is hashed. Where a value
    is missing (code -1), the result has no meaning.
    """
    codes, key_codes = codes[:, :, np.newaxis], key_codes[:, np.newaxis]
    n_rows = len(codes)
    # All pairs there may be are fewer than the rows: hash those.
    if len(hashes) * len(keys) <= n_rows:
        hashes = fingerprint_cat64(hashes[:, np.newaxis], keys).ravel()
        return hashes, (codes * len(keys) + key_codes).reshape(n_rows, -1)
    hashes = fingerprint_cat64(
        hashes.take(codes, mode="wrap"), keys.take(key_codes, mode="wrap")
    )
    return hashes.ravel(), np.arange(hashes.size).reshape(n_rows, -1)


def _int64_keys_of(
    key: str | CategoricalColumn, table: Table
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """64-bit keys, uint64; which of them the cells have; and which cells have a value."""
    if isinstance(key, CategoricalColumn):
        ids, present = key.ids(table)
        if key.num_buckets >= table.n_rows:
            cell_of = np.arange(ids.size).reshape(ids.shape)
            return ids.ravel().view(np.uint64), cell_of, present
        # The last key is that of values without an id, which are crossed all the same.
        keys = np.append(np.arange(key.num_buckets), -1)
        codes = np.where(ids < 0, key.num_buckets, ids)
        return keys.view(np.uint64), codes, present
    cells = table.factorized(key)
    codes = cells.codes.reshape(table.n_rows, -1)
    # With one key more, there are some even if all cells are missing.
    keys = np.append(int64_keys(cells.distinct), np.uint64(0))
    return keys, codes, codes >= 0


def _leaves(keys: Sequence[Any]) -> Iterator[Any]:
    """Keys with nested crosses replaced by their own keys."""
    for key in keys:
        if isinstance(key, CrossedColumn):
            yield from _leaves(key.keys)
        else:
            yield key


def _is_column(key: Any) -> bool:
    return isinstance(key, CategoricalColumn)


# Of TensorFlow's FingerprintCat64 in tensorflow/core/platform/fingerprint.h; an exported
# graph has the same operations.
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
