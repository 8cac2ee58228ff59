# SPDX-License-Identifier: Apache-2.0
"""`weighted_categorical_column`: categories with a weight for each value."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from skest.feature_columns.base import (
    CategoricalColumn,
    CategoricalOver,
    Matrix,
    check_key,
    one_hot,
)
from skest.feature_columns.cells import numbers
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.ragged import pad
from skest.feature_columns.table import Key, Table


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
        if not isinstance(column, CategoricalColumn):
            raise TypeError(
                "'categorical_column' of a weighted column must be a categorical or "
                f"bucketized column; got {column!r}."
            )
        for key, kind in (
            (column.length_key, "sequence"),
            (column.weight_key, "weighted"),
        ):
            if key is not None:
                raise ValueError(
                    f"'categorical_column' of a weighted column must not be the {kind} "
                    f"column {column.name!r}. Take a plain categorical column."
                )
        column.validated()
        check_key(
            self.weight_feature_key,
            f"weighted column {self.name!r}",
            "weight_feature_key",
        )
        self._numeric(1).validated()

    def _numeric(self, n_values: int) -> NumericColumn:
        """Return the numeric column that casts the weights."""
        return NumericColumn(self.weight_feature_key, n_values, dtype=self.dtype)

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        ids, present = self.ids(table)
        weights = self._weights(table, present)
        return {self.encoded_key: ids, self.weight_key: np.where(ids < 0, 0, weights)}

    def _matrix(self, table: Table) -> Matrix:
        encoded = self._encoded(table)
        ids, weights = encoded[self.encoded_key], encoded[self.weight_key]
        return one_hot(ids, self.num_buckets, weights)

    def _weights(self, table: Table, present: np.ndarray) -> np.ndarray:
        """Return the weights, of a float type, where values are `present`, else 0."""
        key, names = self.weight_feature_key, self.categorical_column.name
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
        raw = np.where(present, raw, 0)
        if np.isinf(raw).any():
            raise ValueError(
                f"Column {key!r} holds {raw[np.isinf(raw)][0]} as a weight of {names!r}; "
                "infinity (inf) is never allowed. Replace it by a number."
            )
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
