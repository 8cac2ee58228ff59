# SPDX-License-Identifier: Apache-2.0
"""Columns whose cells are categories: what they share, identity and hash buckets."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np
from sklearn.utils import murmurhash3_32

from skest.core.checks import check_choice, check_integer
from skest.feature_columns.base import CategoricalColumn, check_key
from skest.feature_columns.cells import Factorized, without
from skest.feature_columns.table import Key, Table

CELL_DTYPES = (None, "string", "int64")
_LARGEST_HASH = 2**32  # so many hashes there are
_NO_ID = np.array([-1])


class KeyedCategoricalColumn(CategoricalColumn):
    """Categorical column that reads one raw column.

    A missing cell has no id: None, NaN, pd.NA, the empty string, and, as in TensorFlow,
    the integer -1. A cell may hold several values: a list, a row of an array of two
    dimensions, or a string that is split at `delimiter`. A subclass has the parameter
    `key`, maybe `delimiter`, and gives ids to distinct values.
    """

    delimiter: str | None = None

    def _ids_of(self, distinct: np.ndarray) -> np.ndarray:
        """Return the ids of distinct values, -1 for none."""
        raise NotImplementedError

    def _check_cells(self, cells: Factorized) -> None:
        """Raise ValueError if the cells have a type that this column cannot take."""

    def _cells(self, table: Table) -> Factorized:
        """Return the cells as categories, after a check of their type."""
        cells = table.factorized(self.key, self.delimiter)
        self._check_cells(cells)
        return cells

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids, looked up once for each distinct value."""
        # A million cells have a thousand values: only these are looked up.
        cells = self._cells(table)
        codes = present_codes(cells).reshape(table.n_rows, -1)
        # The code of a missing cell, -1, wraps to the last place.
        ids = np.concatenate([self._ids_of(cells.distinct), _NO_ID])
        return ids.take(codes, mode="wrap"), codes >= 0


def categorical_column_with_identity(
    key: Key, num_buckets: int, default_value: int | None = None
) -> "IdentityColumn":
    """Integers that are ids already.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array or frame.
    num_buckets : int
        Ids are 0 to ``num_buckets - 1``.
    default_value : int or None, default=None
        Id of all integers outside that range, except -1, which means missing. None
        gives negative integers no id and refuses those of `num_buckets` and more.

    Returns
    -------
    IdentityColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of ``tf.feature_column.categorical_column_with_identity``
    (whose indicator drops integers that are too large without a word).

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import categorical_column_with_identity
    >>> column = categorical_column_with_identity("month", 12)
    >>> column.encode({"month": np.array([0, 11, -1])})["month_ids"]
    array([[ 0],
           [11],
           [-1]])
    """
    return IdentityColumn(key, num_buckets, default_value).validated()


class IdentityColumn(KeyedCategoricalColumn):
    """Column made by `categorical_column_with_identity`, see there."""

    num_buckets: int = 0  # a parameter here, in place of the property

    def __init__(
        self, key: Key, num_buckets: int, default_value: int | None = None
    ) -> None:
        self.key = key
        self.num_buckets = num_buckets
        self.default_value = default_value

    def _validate(self) -> None:
        owner = f"identity column {self.key!r}"
        check_key(self.key, owner)
        check_integer(self.num_buckets, "num_buckets", owner, minimum=1)
        if self.default_value is not None:
            last = self.num_buckets - 1
            check_integer(self.default_value, "default_value", owner, 0, last)

    def _check_cells(self, cells: Factorized) -> None:
        if cells.are_strings:
            raise ValueError(
                f"Column {self.key!r} must hold integers for an identity column; got the "
                f"string {cells.example!r}. Use "
                "categorical_column_with_vocabulary_list, or convert the column."
            )
        if self.default_value is None and cells.are_integers:
            # TensorFlow drops such ids without a word where they are counted, and fails
            # where they are looked up.
            large = cells.distinct[cells.distinct >= self.num_buckets]
            if len(large):
                raise ValueError(
                    f"Column {self.key!r} holds {large[0]}, but its "
                    f"identity column has num_buckets={self.num_buckets}. Raise "
                    "'num_buckets', or set 'default_value' to the id of such values."
                )

    def _ids_of(self, distinct: np.ndarray) -> np.ndarray:
        outside = -1 if self.default_value is None else self.default_value
        # In an IdentityCategoricalColumn of TensorFlow, `default_value` stands for both
        # ends as well.
        inside = (distinct >= 0) & (distinct < self.num_buckets)
        return np.where(inside, distinct, outside).astype(np.int64)

    def _categories_of(self, ids: np.ndarray) -> np.ndarray:
        return ids.astype(object)


def categorical_column_with_hash_bucket(
    key: Key,
    hash_bucket_size: int,
    dtype: str | None = None,
    *,
    delimiter: str | None = None,
) -> "HashBucketColumn":
    r"""Strings or integers, spread over buckets by their hash.

    There is nothing to learn and no value is unknown, but different values may meet in
    one bucket. A missing cell (None, NaN, "" or the integer -1) has no id.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array or frame.
    hash_bucket_size : int
        Number of buckets.
    dtype : {"string", "int64"} or None, default=None
        Type that the cells must have; None takes both. Integers are hashed as their
        decimal string, so 7 and "7" have the same id.
    delimiter : str or None, default=None
        Where strings are split into several values, e.g. "|" for "a|b|c"; empty parts
        are missing. ``r"\w+"`` takes the words, in lower case and without what stands
        between them. Without a delimiter, a cell has several values if it is a list.

    Returns
    -------
    HashBucketColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of ``tf.feature_column.categorical_column_with_hash_bucket``,
    except for the hash function: MurmurHash3 here, FarmHash there.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import categorical_column_with_hash_bucket
    >>> column = categorical_column_with_hash_bucket("url", 1000)
    >>> column.encode({"url": np.array(["a.org", "b.org", ""])})["url_ids"]
    array([[132],
           [281],
           [ -1]])
    """
    return HashBucketColumn(
        key, hash_bucket_size, dtype, delimiter=delimiter
    ).validated()


@dataclass(eq=False, repr=False)
class HashBucketColumn(KeyedCategoricalColumn):
    """Column made by `categorical_column_with_hash_bucket`, see there."""

    key: Key
    hash_bucket_size: int
    dtype: str | None = None
    _: KW_ONLY
    delimiter: str | None = None

    @property
    def num_buckets(self) -> int:
        """The parameter `hash_bucket_size`."""
        return self.hash_bucket_size

    has_inverse = False  # several values may share a bucket

    def _validate(self) -> None:
        owner = f"hash bucket column {self.key!r}"
        check_key(self.key, owner)
        size = self.hash_bucket_size
        check_integer(size, "hash_bucket_size", owner, 1, _LARGEST_HASH)
        check_choice(self.dtype, "dtype", owner, CELL_DTYPES)
        check_delimiter(self.delimiter, owner, self.dtype)

    def _check_cells(self, cells: Factorized) -> None:
        if self.dtype is not None:
            check_kind(cells, self.dtype, f"'dtype' of hash bucket column {self.key!r}")

    def _ids_of(self, distinct: np.ndarray) -> np.ndarray:
        return bucket_ids(distinct, self.hash_bucket_size)


def check_delimiter(delimiter: Any, owner: str, dtype: str | None) -> None:
    """Raise unless `delimiter` is None, or can split values of type `dtype`."""
    if delimiter is None:
        return
    if not isinstance(delimiter, str):
        raise TypeError(
            f"'delimiter' of {owner} must be a string or None; got {delimiter!r}."
        )
    if not delimiter:
        raise ValueError(f"'delimiter' of {owner} must not be an empty string.")
    if dtype == "int64":
        raise ValueError(
            f"'delimiter' of {owner} splits strings, but its values are of type 'int64'. "
            "Give lists of integers without 'delimiter', or values that are strings."
        )


def present_codes(cells: Factorized) -> np.ndarray:
    """Codes of cells, with -1 also where the cell is the integer -1."""
    # Among strings, "-1" is a value like others; TensorFlow, too, reads only the
    # integer so.
    if not cells.are_integers:
        return cells.codes
    return without(cells.codes, np.flatnonzero(cells.distinct == -1))


def check_kind(
    cells: Factorized,
    expected: str | None,
    source: str,
    known: Callable[[], Iterable[Any]] = tuple,
) -> None:
    """Raise ValueError if cells are strings or integers, and the other is expected.

    The message shows the first of what `known` returns.
    """
    if (cells.are_strings and expected == "int64") or (
        cells.are_integers and expected == "string"
    ):
        found = "string" if cells.are_strings else "int64"
        values = [*islice(known(), 3)]
        # Of booleans, which are strings to a vocabulary, the type alone is a riddle.
        some = " and ".join(map(repr, values[:2]))
        raise ValueError(
            f"Cells must be of type {expected!r}{f' ({some})' if some else ''}, by "
            f"{source}; got {cells.example!r} "
            f"of type {found!r}. Convert the column, or change the feature column."
        )


# `_DEFAULT_HASH_KEY` of TensorFlow's sparse_ops.
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

    Examples
    --------
    >>> import numpy as np
    >>> string_hashes(np.array(["a", "b"], dtype=object))
    array([1009084850, 2514386435], dtype=uint64)
    """
    # An operator of ONNX Runtime, so that exported graphs hash as Python does.
    hashes = map(murmurhash3_32, values.tolist(), repeat(seed), repeat(True))
    return np.fromiter(hashes, dtype=np.uint64, count=len(values))


def string_to_int64keys(values: np.ndarray) -> np.ndarray:
    """Hash distinct strings to 64 bits: two 32-bit hashes with the seeds 0 and 1."""
    return string_hashes(values, 0) | (string_hashes(values, 1) << np.uint64(32))


def int64_keys(values: np.ndarray) -> np.ndarray:
    """64-bit keys of distinct values, uint64: hashes of strings, integers as they are."""
    if values.dtype == object:
        # SparseCross of TensorFlow hashes strings to 64 bits and takes integers as they
        # are.
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
