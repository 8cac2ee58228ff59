# SPDX-License-Identifier: Apache-2.0
"""A matrix, and parts of it: its numbers, its flags, and what was one-hot encoded before.

A pipeline hands its last step an array, in which the hundred levels of a category are a
hundred numbers. A network learns far more of them as one category again.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from skest.feature_columns.cells import Factorized
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.sparse_matrix import stored_numbers
from skest.feature_columns.table import Key, Table
from skest.feature_columns.vocabulary import (
    NumberedVocabularyColumn,
    VocabularyListColumn,
)

#: Categories with at most so many levels become an indicator, others an embedding; and so
#: many one-hot columns stay flags.
MAX_INDICATOR_LEVELS = 10
#: The level of a row in which no column of a one-hot block is on, or several are.
NO_LEVEL = "(none)"
#: Columns of a sparse matrix that are numbers, and not mostly zero.
DENSE_SHARE = 0.5
#: So many other columns of a sparse matrix are made dense if it has one-hot blocks.
FEW_COLUMNS = 64
#: In so many rows two columns of a run would be on by chance, and never are.
MANY_BY_CHANCE = 10


@dataclass(eq=False, repr=False)
class PartOfMatrix:
    """Mixin of columns that read some columns of a matrix, dense or sparse.

    Parameters
    ----------
    source_key : str
        Key of the matrix.
    n_columns : int
        How many columns it has.
    """

    _: KW_ONLY
    source_key: Key
    n_columns: int

    takes_sparse = True

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Key of the matrix."""
        return (self.source_key,)

    def _part(self, table: Table, elements: Sequence[int], names: Sequence[str]) -> Any:
        """Return some columns of a matrix; of a frame, the columns of these names."""
        key = self.source_key
        # Estimators give the matrix; whoever has its columns may call one of them so.
        if table.feature_names is not None or key not in table:
            return table.matrix(names)
        is_sparse = table.holds_sparse(key)
        matrix = stored_numbers(table, key) if is_sparse else table.numbers(key)
        if matrix.shape[1:] != (self.n_columns,):
            raise ValueError(
                f"Cells of column {key!r} must have shape ({self.n_columns},), as in fit; "
                f"got {matrix.shape[1:]}."
            )
        return matrix[:, elements]


@dataclass(eq=False, repr=False)
class NumericFrameColumn(NumericColumn):
    """All columns of a frame of numbers as one numeric column.

    An estimator without given columns reads such a frame as one array. This column of
    its fitted feature columns takes both: the array under `key`, and the frame, whose
    columns it finds by their names.

    Parameters
    ----------
    key, shape, default_value, dtype, normalizer, indicate_missing
        As of `numeric_column`; `key` is that of the array.
    feature_names : sequence of str
        Names of the columns of the frame, one for each element of `shape`.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.feature_columns.matrix_parts import NumericFrameColumn
    >>> column = NumericFrameColumn("x", 2, feature_names=["age", "size"])
    >>> column.transform(pd.DataFrame({"size": [1.0], "age": [50.0]}))
    array([[50.,  1.]], dtype=float32)
    >>> column.get_feature_names_out()
    array(['age', 'size'], dtype=object)
    """

    _: KW_ONLY
    feature_names: Sequence[str]

    @property
    def _element_names(self) -> list[str]:
        return [str(name) for name in self.feature_names]

    def _element(self, i: int) -> str:
        return f"Column {self.feature_names[i]!r}"

    def _raw(self, table: Table) -> np.ndarray:
        # A dictionary may have the columns by their names; an array of the fit has
        # none.
        is_array = table.feature_names is None
        if is_array and not set(self.feature_names).issubset(table.keys):
            return super()._raw(table)
        return table.matrix(self.feature_names)


@dataclass(eq=False, repr=False)
class NumericPartColumn(PartOfMatrix, NumericFrameColumn):
    """Some columns of a matrix as a numeric column, called `key`.

    Parameters
    ----------
    key, shape, default_value, dtype, normalizer, indicate_missing
        As of `numeric_column`; `key` is the name only.
    source_key, n_columns
        As of `PartOfMatrix`.
    elements : sequence of int
        Which columns of the matrix.
    feature_names : sequence of str
        Names of these columns in a frame.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.matrix_parts import NumericPartColumn
    >>> part = {"elements": [0, 2], "n_columns": 3, "feature_names": ["x0", "x2"]}
    >>> column = NumericPartColumn("numbers", 2, source_key="x", **part)
    >>> column.transform(np.arange(6.0).reshape(2, 3))
    array([[0., 2.],
           [3., 5.]], dtype=float32)
    """

    _: KW_ONLY
    elements: Sequence[int]

    def _raw(self, table: Table) -> np.ndarray:
        values = self._part(table, self.elements, self.feature_names)
        return values.toarray() if scipy.sparse.issparse(values) else values


class FlagsColumn(NumericPartColumn):
    """Columns of a matrix that have two values each, beside which nothing is of use."""


@dataclass(eq=False, repr=False)
class NumberedVocabularyPartColumn(PartOfMatrix, NumberedVocabularyColumn):
    """A column of a matrix whose whole numbers name things.

    Parameters
    ----------
    key : str
        Name of the column.
    vocabulary_list, dtype, default_value, num_oov_buckets, min_frequency, \
max_categories, delimiter, missing_bucket, unknown_rate
        As of `categorical_column_with_vocabulary_list`.
    source_key, n_columns
        As of `PartOfMatrix`.
    element : int
        Which column of the matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.matrix_parts import NumberedVocabularyPartColumn
    >>> column = NumberedVocabularyPartColumn("x1", source_key="x", element=1, n_columns=2)
    >>> column.fit_transform(np.array([[0.5, 7.0], [0.1, 9.0]])).toarray()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    _: KW_ONLY
    element: int

    def _numbers(self, table: Table) -> np.ndarray:
        values = self._part(table, [self.element], [str(self.key)])
        dense = values.toarray() if scipy.sparse.issparse(values) else values
        return dense.astype(np.float64, copy=False)


@dataclass(eq=False, repr=False)
class OneHotColumn(PartOfMatrix, VocabularyListColumn):
    """Columns of a matrix of which one is on in each row, as the category that they were.

    Parameters
    ----------
    key : str
        Name of the column.
    vocabulary_list, dtype, default_value, num_oov_buckets, min_frequency, \
max_categories, delimiter, missing_bucket, unknown_rate
        As of `categorical_column_with_vocabulary_list`.
    source_key, n_columns
        As of `PartOfMatrix`.
    elements : sequence of int
        Which columns of the matrix.
    thresholds : sequence of float
        A column is on where it is greater.
    level_names : sequence of str
        Names of these columns in a frame, and so of the levels.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.matrix_parts import OneHotColumn
    >>> part = {"elements": [1, 2], "n_columns": 3, "thresholds": [0.5, 0.5]}
    >>> column = OneHotColumn("color", source_key="x", level_names=["blue", "red"], **part)
    >>> column.fit_transform(np.array([[7.0, 0.0, 1.0], [9.0, 1.0, 0.0]])).toarray()
    array([[0., 1.],
           [1., 0.]], dtype=float32)
    """

    _: KW_ONLY
    elements: Sequence[int]
    thresholds: Sequence[float]
    level_names: Sequence[str]

    @property
    def levels(self) -> np.ndarray:
        """Names of the levels, and behind them `NO_LEVEL`."""
        return np.array([*self.level_names, NO_LEVEL], dtype=object)

    def _cells(self, table: Table) -> Factorized:
        # Of a thousand levels, to look takes longer than all that follows.
        what = ("one hot", self.key, self.source_key)
        return Factorized(table.learned(what, lambda: self._codes(table)), self.levels)

    def _codes(self, table: Table) -> np.ndarray:
        """Return the place of the one column that is on in each row."""
        values = self._part(table, self.elements, self.level_names)
        thresholds = np.asarray(self.thresholds)
        if scipy.sparse.issparse(values) and (thresholds < 0).any():
            values = values.toarray()
        # A number that is missing is no greater.
        if scipy.sparse.issparse(values):
            is_on = values.data > thresholds[values.indices]
            rows = np.repeat(np.arange(table.n_rows), np.diff(values.indptr))[is_on]
            places = values.indices[is_on]
        else:
            if np.isinf(values).any():
                raise ValueError(
                    f"The columns {self.level_names[0]!r} to {self.level_names[-1]!r} "
                    "hold infinity (inf), which is never allowed. Replace it by a number."
                )
            rows, places = np.nonzero(values > thresholds)
        codes = np.full(table.n_rows, len(self.elements))
        codes[rows] = places
        codes[np.bincount(rows, minlength=table.n_rows) > 1] = len(self.elements)
        return codes


class Parts(NamedTuple):
    """Columns of a matrix by what they hold.

    Attributes
    ----------
    numbers, flags : ndarray of int
        Columns of many values, and of two.
    blocks : list of ndarray of int
        Columns of which one is on in each row, or none.
    thresholds : ndarray of float64, shape (n_columns,)
        In the middle between the two values.
    is_all : bool
        Whether these are all columns.
    """

    numbers: np.ndarray
    flags: np.ndarray
    blocks: list[np.ndarray]
    thresholds: np.ndarray
    is_all: bool


def parts_of(matrix: np.ndarray | scipy.sparse.csr_array) -> Parts:
    """Look at the columns of a matrix.

    Parameters
    ----------
    matrix : ndarray or CSR array of shape (n_rows, n_columns)
        Numbers; NaN is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.matrix_parts import parts_of
    >>> matrix = np.c_[np.linspace(0, 1, 55), np.tile(np.eye(11), (5, 1))]
    >>> parts = parts_of(matrix)
    >>> parts.numbers, parts.blocks
    (array([0]), [array([ 1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])])
    """
    ends_of = _ends if isinstance(matrix, np.ndarray) else _sparse_ends
    low, high, has_two = ends_of(matrix)
    has_two &= np.isfinite(low) & np.isfinite(high)
    is_same = low == high
    with np.errstate(over="ignore", invalid="ignore"):
        thresholds = low + (high - low) / 2
    thresholds = np.where(thresholds < high, thresholds, low)  # of rounding noise
    blocks = _blocks(matrix, has_two, is_same, thresholds)
    in_block = np.isin(np.arange(matrix.shape[1]), np.concatenate([[], *blocks]))
    blocks = [block for block in blocks if len(block) > MAX_INDICATOR_LEVELS]
    rest = np.ones(len(low), bool)
    rest[np.concatenate([np.empty(0, np.intp), *blocks])] = False
    is_all = True
    if not isinstance(matrix, np.ndarray):
        n_stored = np.bincount(matrix.indices, minlength=len(rest))
        known = in_block | (n_stored >= DENSE_SHARE * matrix.shape[0])
        # Words of texts, of which these rows may have few, stay sparse.
        if not known.any() or (~known).sum() > FEW_COLUMNS:
            is_all, rest = False, rest & known
    is_flag = has_two.copy()
    # A level that no row has. Other columns may have values in a later batch.
    for block in blocks:
        is_flag[block[0] : block[-1]] = True
    return Parts(
        np.flatnonzero(rest & ~is_flag),
        np.flatnonzero(rest & is_flag),
        blocks,
        thresholds,
        is_all,
    )


def _ends(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return least and greatest number of columns, and which have no others.

    Those of columns of more values are 0 and 1.
    """
    low = np.zeros(matrix.shape[1])
    high, has_two = np.ones(len(low)), np.zeros(len(low), bool)
    # The first rows tell of most columns that they have more.
    places = np.arange(len(low))
    for rows in (matrix[:100], matrix):
        some = rows[:, places]
        least, most = some.min(axis=0), some.max(axis=0)
        are_two = ((some == least) | (some == most)).all(axis=0)
        places, least, most = places[are_two], least[are_two], most[are_two]
    low[places], high[places], has_two[places] = least, most, least < most
    return low, high, has_two


def _sparse_ends(
    matrix: scipy.sparse.csr_array,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, high = (
        end.toarray().ravel().astype(np.float64)
        for end in (matrix.min(axis=0), matrix.max(axis=0))
    )
    # The numbers that are stored are not zero.
    other = np.flatnonzero(matrix.data != high[matrix.indices])
    has_two = (low == 0) & (high > 0)
    has_two[matrix.indices[other]] = False
    return low, high, has_two


def _blocks(
    matrix: Any, has_two: np.ndarray, is_same: np.ndarray, thresholds: np.ndarray
) -> list[np.ndarray]:
    """Return runs of columns of two values of which at most one is on in each row.

    Between them may be columns that are the same in each row: of levels that none has.
    """
    n_rows = matrix.shape[0]
    if not isinstance(matrix, np.ndarray):
        matrix = matrix.tocsc()
    n_on = np.zeros(len(has_two))
    last_on = np.full(n_rows, -1)  # column that was on in a row
    runs: list[tuple[int, int]] = []
    begin = 0
    for i in range(len(has_two)):
        if is_same[i]:
            continue
        first = i + 1  # a number ends every run
        if has_two[i]:
            if isinstance(matrix, np.ndarray):
                rows = np.flatnonzero(matrix[:, i] > thresholds[i])
            else:
                rows = matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]
            n_on[i] = len(rows)
            # Behind the last column that is on with this one.
            first = max(begin, last_on[rows].max() + 1)
            last_on[rows] = i
        if first > begin:
            runs.append((begin, i))
            begin = first
    runs.append((begin, len(has_two)))
    # How often two would be on if they were independent.
    by_chance = [
        (n_on[a:b].sum() ** 2 - np.square(n_on[a:b]).sum()) / (2 * n_rows)
        for a, b in runs
    ]
    blocks: list[np.ndarray] = []
    free = has_two.copy()
    for place in np.argsort(by_chance)[::-1]:
        a, b = runs[place]
        if by_chance[place] >= MANY_BY_CHANCE and free[a:b][has_two[a:b]].all():
            blocks.append(a + np.flatnonzero(has_two[a:b]))
            free[a:b] = False
    return sorted(blocks, key=lambda block: int(block[0]))
