# SPDX-License-Identifier: Apache-2.0
"""Sequence columns: cells of several values whose order counts."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from skest.feature_columns.base import CategoricalOver
from skest.feature_columns.categorical import (
    KeyedCategoricalColumn,
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
)
from skest.feature_columns.cells import Flat, lengths_of, pad
from skest.feature_columns.numeric import NumericColumn, as_list
from skest.feature_columns.table import Key, Table
from skest.feature_columns.vocabulary import categorical_column_with_vocabulary_list
from skest.feature_columns.vocabulary_file import (
    categorical_column_with_vocabulary_file,
)


def sequence_numeric_column(
    key: Key,
    shape: int | tuple[int, ...] = (1,),
    default_value: float | Sequence[Any] | np.ndarray | str | None = None,
    dtype: Any = "float32",
    normalizer: str | Callable[[np.ndarray], np.ndarray] | None = None,
    indicate_missing: bool | str = False,
) -> "SequenceNumericColumn":
    """Sequences of numbers, or of arrays of numbers, as they are or scaled.

    A cell is a list or an array with an element for each step; a missing cell is an
    empty sequence. In an array of shape ``(n_rows, n_steps, *shape)`` NaN at the end
    of a row is padding. Every other NaN is a missing number.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array or frame.
    shape : int or tuple of int, default=(1,)
        Shape of one step; the output is flat.
    default_value : float, list or array of float, "mean" or None, default=None
        What stands in for a missing number, before scaling; a list has one for each
        element, "mean" is the (weighted) mean over all steps of the training data. None
        refuses missing numbers. A single number also pads shorter sequences, after
        scaling; else zeros do.
    dtype, normalizer, indicate_missing
        As of `numeric_column`. Statistics are those of all steps together, each with
        the weight of its row.

    Returns
    -------
    SequenceNumericColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    See Also
    --------
    SequenceFeatures : The module that takes it.

    Notes
    -----
    The semantics are those of ``tf.feature_column.sequence_numeric_column``, where the
    default value only pads.

    Examples
    --------
    >>> from skest.feature_columns import sequence_numeric_column
    >>> column = sequence_numeric_column("dose")
    >>> encoded = column.encode({"dose": [[1.0, 2.0], [], [3.0]]})
    >>> encoded["dose"][:, :, 0]
    array([[1., 2.],
           [0., 0.],
           [3., 0.]], dtype=float32)
    >>> encoded["dose_length"]
    array([2, 0, 1])
    """
    default = as_list(default_value)
    return SequenceNumericColumn(
        key, shape, default, dtype, normalizer, indicate_missing
    ).validated()


class SequenceNumericColumn(NumericColumn):
    """A numeric column of every step; made by `sequence_numeric_column`, see there.

    The attributes that it learns are those of `NumericColumn`.
    """

    @property
    def length_key(self) -> str:
        """Key of the numbers and ``_length``."""
        return f"{self.encoded_key}_length"

    def _learn(self, table: Table) -> dict[str, Any]:
        steps, lengths = steps_of(table, self.key)
        if len(steps) == 0:
            raise ValueError(
                f"All sequences of column {self.key!r} are empty, so there is nothing to "
                "learn from them. Leave the column out."
            )
        # A step weighs what its row does, so that a long sequence counts for more.
        weight = None if table.weight is None else np.repeat(table.weight, lengths)
        # Each step is a row of a table of its own, which a numeric column reads as any
        # other.
        return super()._learn(Table({self.key: steps}).with_target(None, weight))

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        steps, lengths = steps_of(table, self.key)
        if len(steps):
            numbers = super()._encoded(Table({self.key: steps}))[self.encoded_key]
        else:
            # A batch of empty sequences only: there is nothing to scale, but there is a
            # type.
            numbers = np.empty((0, self.size), np.promote_types(self.dtype, np.float32))
        # With this value TensorFlow's sequence_numeric_column fills the steps behind
        # the last.
        fill = self.default_value if isinstance(self.default_value, Real) else 0.0
        return {
            self.encoded_key: pad(numbers, lengths, float(fill)),
            self.length_key: lengths,
        }


@dataclass(eq=False, repr=False)
class SequenceCategoricalColumn(CategoricalOver):
    """Sequences of categories.

    It is made by the functions ``sequence_categorical_column_with_…``. For a network it
    is wrapped in `indicator_column` or `embedding_column`, which then have an output for
    each step.

    A cell is a list or an array, or, where the function has a `delimiter`, a string; a
    missing cell is an empty sequence. In an array of shape (n_rows, n_steps), and in a
    string that is split, missing values at the end are padding. Every other missing
    value, as one without an id, is a step of zeros.

    Parameters
    ----------
    categorical_column : CategoricalColumn
        What gives an id to every value: a column that reads one raw column.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    """

    categorical_column: KeyedCategoricalColumn

    @property
    def name(self) -> str:
        """Name of the categorical column."""
        return self.categorical_column.name

    @property
    def length_key(self) -> str:
        """Key of the ids and ``_length``."""
        return f"{self.encoded_key}_length"

    def _validate(self) -> None:
        # Only these read cells that are lists, whose lengths are those of the
        # sequences.
        if not isinstance(self.categorical_column, KeyedCategoricalColumn):
            raise TypeError(
                "'categorical_column' of a SequenceCategoricalColumn must come from "
                "categorical_column_with_identity, _vocabulary_list, _vocabulary_file or "
                f"_hash_bucket; got {self.categorical_column!r}."
            )
        self.categorical_column.validated()

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        ids, present = self.ids(table)
        flat = table.flat(self.categorical_column.key)
        # Of a list, missing values at the end are steps; of an array they are padding.
        lengths = lengths_of(present) if flat is None else flat.lengths
        # Of an array, what is padding in all rows is cut off.
        n_steps = max(1, lengths.max())
        return {self.encoded_key: ids[:, :n_steps], self.length_key: lengths}


def sequence_categorical_column_with_identity(
    key: Key, num_buckets: int, default_value: int | None = None
) -> SequenceCategoricalColumn:
    """Sequences of integers that are ids already.

    How cells are read is said at `SequenceCategoricalColumn`.

    Parameters
    ----------
    key, num_buckets, default_value
        As of `categorical_column_with_identity`.

    Returns
    -------
    SequenceCategoricalColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    As ``tf.feature_column.sequence_categorical_column_with_identity``.

    Examples
    --------
    >>> from skest.feature_columns import sequence_categorical_column_with_identity
    >>> column = sequence_categorical_column_with_identity("page", 9)
    >>> column.encode({"page": [[4, 2], [], [7]]})
    {'page_ids': array([[ 4,  2],
           [-1, -1],
           [ 7, -1]]), 'page_ids_length': array([2, 0, 1])}
    """
    column = categorical_column_with_identity(key, num_buckets, default_value)
    return SequenceCategoricalColumn(column)


def sequence_categorical_column_with_vocabulary_list(
    key: Key,
    vocabulary_list: Sequence[str] | Sequence[int] | None = None,
    dtype: str | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
    min_frequency: float = 1,
    max_categories: int | None = None,
    *,
    delimiter: str | None = None,
) -> SequenceCategoricalColumn:
    """Sequences of strings or integers of a vocabulary, given or learned.

    How cells are read is said at `SequenceCategoricalColumn`.

    Parameters
    ----------
    key, vocabulary_list, dtype, default_value, num_oov_buckets, min_frequency, \
max_categories, delimiter
        As of `categorical_column_with_vocabulary_list`.

    Returns
    -------
    SequenceCategoricalColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    As ``tf.feature_column.sequence_categorical_column_with_vocabulary_list``.

    Examples
    --------
    >>> from skest.feature_columns import sequence_categorical_column_with_vocabulary_list
    >>> column = sequence_categorical_column_with_vocabulary_list("visit", ["lab", "ward"])
    >>> column.encode({"visit": [["ward", "lab", "ward"], ["lab", "home"]]})["visit_ids"]
    array([[ 1,  0,  1],
           [ 0, -1, -1]])
    """
    column = categorical_column_with_vocabulary_list(
        key,
        vocabulary_list,
        dtype,
        default_value,
        num_oov_buckets,
        min_frequency,
        max_categories,
        delimiter=delimiter,
    )
    return SequenceCategoricalColumn(column)


def sequence_categorical_column_with_vocabulary_file(
    key: Key,
    vocabulary_file: str | os.PathLike[str],
    vocabulary_size: int | None = None,
    dtype: str = "string",
    default_value: int | None = None,
    num_oov_buckets: int = 0,
    *,
    delimiter: str | None = None,
) -> SequenceCategoricalColumn:
    r"""Sequences of strings or integers of a vocabulary that a text file lists.

    How cells are read is said at `SequenceCategoricalColumn`.

    Parameters
    ----------
    key, vocabulary_file, vocabulary_size, dtype, default_value, num_oov_buckets, delimiter
        As of `categorical_column_with_vocabulary_file`.

    Returns
    -------
    SequenceCategoricalColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong. What is wrong with the file is said when it is read.

    Notes
    -----
    As ``tf.feature_column.sequence_categorical_column_with_vocabulary_file``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skest.feature_columns import sequence_categorical_column_with_vocabulary_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "visits.txt")
    ...     _ = path.write_text("lab\nward\n")
    ...     column = sequence_categorical_column_with_vocabulary_file(
    ...         "visit", path, delimiter="|"
    ...     )
    ...     column = column.fit({"visit": ["lab"]})
    >>> column.encode({"visit": ["ward|lab|ward", "lab|home"]})["visit_ids"]
    array([[ 1,  0,  1],
           [ 0, -1, -1]])
    """
    column = categorical_column_with_vocabulary_file(
        key,
        vocabulary_file,
        vocabulary_size,
        dtype,
        default_value,
        num_oov_buckets,
        delimiter=delimiter,
    )
    return SequenceCategoricalColumn(column)


def sequence_categorical_column_with_hash_bucket(
    key: Key,
    hash_bucket_size: int,
    dtype: str | None = None,
    *,
    delimiter: str | None = None,
) -> SequenceCategoricalColumn:
    """Sequences of strings or integers, spread over buckets by their hash.

    How cells are read is said at `SequenceCategoricalColumn`.

    Parameters
    ----------
    key, hash_bucket_size, dtype, delimiter
        As of `categorical_column_with_hash_bucket`.

    Returns
    -------
    SequenceCategoricalColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    As ``tf.feature_column.sequence_categorical_column_with_hash_bucket``, with another
    hash function.

    Examples
    --------
    >>> from skest.feature_columns import sequence_categorical_column_with_hash_bucket
    >>> column = sequence_categorical_column_with_hash_bucket("url", 1000)
    >>> column.encode({"url": [["a.org", "b.org"], ["b.org"]]})["url_ids"]
    array([[132, 281],
           [281,  -1]])
    """
    column = categorical_column_with_hash_bucket(
        key, hash_bucket_size, dtype, delimiter=delimiter
    )
    return SequenceCategoricalColumn(column)


def steps_of(table: Table, key: Key) -> Flat:
    """Return the steps of all sequences, one after the other.

    Parameters
    ----------
    table : Table
        Raw data.
    key : str or int
        A column whose cells are lists or arrays, or numbers: sequences of one step.

    Returns
    -------
    Flat
        Steps and lengths. Of an array, NaN at the end of its rows is left out.
    """
    flat = table.flat(key)
    if flat is not None:
        return flat
    steps = table.numbers(key)
    if steps.ndim == 1:
        # A number is a sequence of one step.
        steps = steps[:, np.newaxis]
    # A step is there if one of its numbers is; NaN among the others is a missing
    # number.
    inside_a_step = tuple(range(2, steps.ndim))
    lengths = lengths_of((~np.isnan(steps)).any(axis=inside_a_step))
    return Flat(steps[np.arange(steps.shape[1]) < lengths[:, np.newaxis]], lengths)
