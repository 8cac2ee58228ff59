# SPDX-License-Identifier: Apache-2.0
"""`crossed_column` and `weighted_categorical_column`: made of several raw columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skest.core.checks import check_integer
from skest.feature_columns.base import (
    CategoricalColumn,
    CategoricalOver,
    Matrix,
    check_categorical,
    check_key,
    innermost,
    one_hot,
)
from skest.feature_columns.categorical import (
    DEFAULT_HASH_KEY,
    HashBucketColumn,
    int64_keys,
)
from skest.feature_columns.cells import numbers, pad
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.sources import is_key
from skest.feature_columns.table import Key, Table


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

    keys: Sequence[str | CategoricalColumn]
    hash_bucket_size: int
    hash_key: int | None = None

    @property
    def name(self) -> str:
        """Sorted names of what is crossed, joined by ``_X_``."""
        # TensorFlow sorts them too, so that the name tells nothing of the order of the
        # hash.
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

    has_inverse = False  # several values may share a bucket

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
        # So that ids are of 64 bits, of which one is the sign, and so are hashes.
        check_integer(self.hash_bucket_size, "hash_bucket_size", owner, 1, 2**63)
        if self.hash_key is not None:
            check_integer(self.hash_key, "hash_key", owner, 0, 2**64 - 1)

    def _validate_key(self, key: Any) -> None:
        source = innermost(key)
        # As TensorFlow, which refuses them for the same reason.
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

    def _learn(self, table: Table) -> dict[str, Any]:
        fitted = [
            key.fitted(table, table.weight) if _is_column(key) else key
            for key in _leaves(self.keys)
        ]
        return {"keys_": fitted}

    @property
    def hashed_keys(self) -> list[str | CategoricalColumn]:
        """Fitted columns and names of raw columns, in the order of the chain of hashes."""
        leaves = list(_leaves(vars(self).get("keys_", self.keys)))
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
        hashes = np.broadcast_to(self.first_hash, (table.n_rows, 1))
        present = np.ones((table.n_rows, 1), dtype=bool)
        for key in self.hashed_keys:
            # FingerprintCat64 is no symmetric function: SparseCross goes from left to
            # right.
            values, has_value = _int64_keys_of(key, table)
            hashes = fingerprint_cat64(hashes[:, :, np.newaxis], values[:, np.newaxis])
            hashes = hashes.reshape(table.n_rows, -1)
            present = present[:, :, np.newaxis] & has_value[:, np.newaxis]
            present = present.reshape(table.n_rows, -1)
        ids = (hashes % np.uint64(self.hash_bucket_size)).astype(np.int64)
        ids[~present] = -1
        return ids, present


def _int64_keys_of(
    key: str | CategoricalColumn, table: Table
) -> tuple[np.ndarray, np.ndarray]:
    """Return a 64-bit key for each cell, uint64, and which cells have a value."""
    if isinstance(key, CategoricalColumn):
        # Ids, not values: SparseCross of TensorFlow gets what the columns have
        # transformed.
        ids, present = key.ids(table)
        # A value without an id is crossed all the same, with that of -1.
        return ids.view(np.uint64), present
    cells = table.factorized(key)
    codes = cells.codes.reshape(table.n_rows, -1)
    # With one key more, there is one even if all cells are missing.
    keys = np.append(int64_keys(cells.distinct), np.uint64(0))
    return keys.take(codes, mode="wrap"), codes >= 0


def _leaves(keys: Sequence[Any]) -> Iterator[Any]:
    """Keys with nested crosses replaced by their own keys."""
    for key in keys:
        # As _collect_leaf_level_keys of TensorFlow's crossed column.
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


def weighted_categorical_column(
    categorical_column: CategoricalColumn,
    weight_feature_key: Key,
    dtype: Any = "float32",
) -> "WeightedCategoricalColumn":
    """Give each value of a categorical column a weight from another raw column.

    Examples are the words of a document with their frequencies, or the products in a
    basket with their numbers. An indicator, and `transform`, sum the weights of an id. An
    embedding, and a linear model with its `sparse_combiner`, combine rows e with weights
    w to Σwe ("sum"), Σwe / Σw ("mean") or Σwe / √Σw² ("sqrtn"). For the latter two, values
    with a weight of zero or less take no part; for "sum" and indicators a weight may be
    any number.

    Parameters
    ----------
    categorical_column : CategoricalColumn
        Any categorical or bucketized column, but no sequence and no weighted column.
    weight_feature_key : str or int
        Name of the raw column of the weights, or its position in an array. Its cells
        are of the shape of those of the categorical column: one number, an array, or a
        list as long as that of the values. Where there is no value, the weight has no
        meaning and may be missing; every value must have a weight that is finite.
    dtype : {"float32", "float64", "int32", "int64"}, default="float32"
        Type to which the weights are cast.

    Returns
    -------
    WeightedCategoricalColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of ``tf.feature_column.weighted_categorical_column``. One
    defect is not copied: there, a weight of 0 in a dense array is dropped before weights
    and values are matched, which then fails.

    Examples
    --------
    >>> from skest.feature_columns import (
    ...     categorical_column_with_vocabulary_list,
    ...     weighted_categorical_column,
    ... )
    >>> word = categorical_column_with_vocabulary_list("word", ["cat", "dog"])
    >>> column = weighted_categorical_column(word, "frequency")
    >>> X = {"word": [["cat", "dog", "cat"], ["dog"]], "frequency": [[1, 2, 0.5], [3]]}
    >>> column.transform(X).toarray()
    array([[1.5, 2. ],
           [0. , 3. ]], dtype=float32)
    """
    return WeightedCategoricalColumn(
        categorical_column, weight_feature_key, dtype
    ).validated()


@dataclass(eq=False, repr=False)
class WeightedCategoricalColumn(CategoricalOver):
    """Column made by `weighted_categorical_column`, where parameters are documented.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    """

    categorical_column: CategoricalColumn
    weight_feature_key: Key
    dtype: Any = "float32"

    @property
    def name(self) -> str:
        """Name of the categorical column, ``_weighted_by_`` and the key of weights."""
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of the categorical column, and that of the weights."""
        return (*self.categorical_column.feature_keys, self.weight_feature_key)

    @property
    def weight_key(self) -> str:
        """The name and ``_weights``."""
        return f"{self.name}_weights"

    def _validate(self) -> None:
        column = self.categorical_column
        check_categorical(column, "a weighted column")
        if column.length_key is not None or column.weight_key is not None:
            kind = "weighted" if column.length_key is None else "sequence"
            raise ValueError(
                f"'categorical_column' of a weighted column must not be the {kind} column "
                f"{column.name!r}. Take a plain categorical column."
            )
        owner = f"weighted column {self.name!r}"
        check_key(self.weight_feature_key, owner, "weight_feature_key")
        # The type of weights is checked as that of other numbers.
        self._numeric(1).validated()

    def _numeric(self, n_values: int) -> NumericColumn:
        """Return the numeric column that casts the weights."""
        return NumericColumn(self.weight_feature_key, n_values, dtype=self.dtype)

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        ids, present = self.ids(table)
        weights = self._weights(table, present)
        # Of values out of vocabulary, safe_embedding_lookup_sparse drops the weights,
        # too.
        return {self.encoded_key: ids, self.weight_key: np.where(ids < 0, 0, weights)}

    def _matrix(self, table: Table) -> Matrix:
        encoded = self._encoded(table)
        # IndicatorColumn of TensorFlow sums the weights of an id, too.
        ids, weights = encoded[self.encoded_key], encoded[self.weight_key]
        return one_hot(ids, self.num_buckets, weights)

    def _weights(self, table: Table, present: np.ndarray) -> np.ndarray:
        """Return the weights, of a float type, where values are `present`, else 0."""
        key, names = self.weight_feature_key, self.categorical_column.name
        # As float64 at first: it has NaN for gaps, and room for what is to be refused.
        raw = self._read(table).astype(np.float64)
        width = present.shape[1]
        # Both are padded to their longest cell, which may be of a category without rows.
        lacking, surplus = present[:, raw.shape[1] :], raw[:, width:]
        if raw.ndim > 2 or lacking.any() or not np.isnan(surplus).all():
            raise ValueError(
                f"Column {key!r} must have a weight for each value of {names!r}, in the "
                f"shape {present.shape}; got {raw.shape}."
            )
        behind = [(0, 0), (0, lacking.shape[1])]
        raw = np.pad(raw[:, :width], behind, constant_values=np.nan)
        missing = np.argwhere(present & np.isnan(raw))
        if len(missing):
            row, position = missing[0]
            raise ValueError(
                f"Column {key!r} has no weight (NaN or None) in row {row} for value "
                f"{position} of {names!r}. Give it one, such as 0 or 1, or leave the "
                "value out."
            )
        # The numeric column refuses what is infinite, or too large for its type.
        raw = np.where(present, raw, 0)
        values, _ = self._numeric(raw.shape[1]).values(Table({key: raw}))
        return values.astype(np.promote_types(values.dtype, np.float32), copy=False)

    def _read(self, table: Table) -> np.ndarray:
        """Return the cells as numbers with one row for each; NaN where there is none."""
        key = self.weight_feature_key
        flat = table.flat(key)
        if flat is None:
            raw = table.numbers(key)
            return raw if raw.ndim > 1 else raw[:, np.newaxis]
        self._check_lengths(table, flat.lengths)
        raw = numbers(flat.values, key).astype(np.float64)
        return pad(raw, flat.lengths, np.nan)

    def _check_lengths(self, table: Table, lengths: np.ndarray) -> None:
        """Raise ValueError if the lists of weights and of values differ in length."""
        # What is crossed of several raw columns has no lists to compare with.
        keys = self.categorical_column.feature_keys
        values = table.flat(keys[0]) if len(keys) == 1 else None
        if values is None or np.array_equal(values.lengths, lengths):
            return
        row = np.flatnonzero(values.lengths != lengths)[0]
        raise ValueError(
            f"Column {self.weight_feature_key!r} must have a weight for each value of "
            f"column {keys[0]!r}; in row {row} it has {lengths[row]} for "
            f"{values.lengths[row]} values."
        )
