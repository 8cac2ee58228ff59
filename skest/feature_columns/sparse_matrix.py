# SPDX-License-Identifier: Apache-2.0
"""`SparseMatrixColumn`: a matrix of numbers most of which are zero."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from skest.feature_columns.base import CategoricalColumn, check_key
from skest.feature_columns.cells import pad
from skest.feature_columns.table import Key, Table


@dataclass(eq=False, repr=False)
class SparseMatrixColumn(CategoricalColumn):
    """The numbers of a sparse matrix, of which only those that are not zero are kept.

    A row is encoded as the positions of its numbers, which are ids, and the numbers
    themselves, each divided by the largest absolute number of its column in the training
    data. What a network learns for an id is multiplied by the number and summed over the
    row: a linear model computes X @ weights, an `embedding_column` with the combiner
    "sum" X @ vectors, and neither makes the matrix dense. `feature_columns=None` chooses
    such columns for a sparse X, such as words of texts.

    Encoded rows are padded to the longest one. An id and a number take 12 bytes, so a
    table takes 12 times the number of rows times the most numbers in a row, however few
    the other rows have: with 100,000 rows, 23 MiB if the longest has 20 numbers and
    2.2 GiB if it has 2000. Such a table is better given in parts, to ``partial_fit`` and
    to ``predict``; each part is padded by itself.

    Parameters
    ----------
    key : str, default="x"
        Name of the matrix in a dictionary; "x" is X itself.

    Attributes
    ----------
    scale_ : ndarray of float64, shape (n_features,)
        The largest absolute number of each column; 1 where all are zero.

    Notes
    -----
    Ids, numbers and offsets of the rows, as in CSR form, would take memory for the numbers
    alone. But batches are rows of tensors that all have a row for each row of the table,
    and a recorded training step takes batches of one shape.

    Examples
    --------
    >>> import scipy.sparse
    >>> from skest.feature_columns import SparseMatrixColumn
    >>> X = scipy.sparse.csr_array([[0.0, 4.0, 0.0], [5.0, 2.0, 0.0]])
    >>> column = SparseMatrixColumn().fit(X)
    >>> column.encode(X)
    {'x_ids': array([[ 1, -1], [ 0, 1]]), 'x_ids_values': array([[1. , 0. ], [1. , 0.5]])}
    """

    is_summed = True
    takes_sparse = True
    needs_fit = True  # for there are the width and the scale
    # What is not stored is zero, and no gap.
    allows_missing = False

    key: Key = "x"

    @property
    def num_buckets(self) -> int:
        """Number of columns of the matrix."""
        return len(self._scale)

    @property
    def weight_key(self) -> str:
        """Key of the ids and ``_values``."""
        return f"{self.encoded_key}_values"

    @property
    def _scale(self) -> np.ndarray:
        return self._learned("scale_", "use another kind of column")

    def _validate(self) -> None:
        check_key(self.key, "SparseMatrixColumn")

    def _learn(self, table: Table) -> dict[str, Any]:
        matrix = stored_numbers(table, self.key)
        if table.weight is not None:
            # A row of weight 0 counts nowhere, not even by its largest number.
            matrix = matrix[np.flatnonzero(table.weight)]
        # As MaxAbsScaler of scikit-learn: a mean would make numbers of all the zeros.
        largest = abs(matrix).max(axis=0).toarray().ravel()
        return {"scale_": np.where(largest > 0, largest, 1).astype(np.float64)}

    def _matrix(self, table: Table) -> scipy.sparse.csr_array:
        matrix, scale = stored_numbers(table, self.key), self._scale
        if matrix.shape[1] != len(scale):
            raise ValueError(
                f"The sparse matrix {self.key!r} has {matrix.shape[1]} features, but "
                f"{len(scale)} in the training data."
            )
        # A number much larger than those of the training data may overflow; it is
        # refused below.
        with np.errstate(over="ignore"):
            data = matrix.data / scale[matrix.indices].astype(matrix.dtype)
        if not np.isfinite(data).all():
            raise ValueError(
                f"The sparse matrix {self.key!r} holds a number that is infinite (inf) "
                f"when it is scaled in {data.dtype}. Replace it, or clip the matrix."
            )
        return scipy.sparse.csr_array(
            (data, matrix.indices, matrix.indptr), matrix.shape
        )

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of numbers other than zero, and where there are some."""
        ids = self._encoded(table)[self.encoded_key]
        return ids, ids >= 0

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        matrix = self._matrix(table)
        lengths = np.diff(matrix.indptr)
        return {
            # A rectangle, see the notes; -1 and 0 stand behind the end of a row.
            self.encoded_key: pad(matrix.indices.astype(np.int64), lengths, -1),
            self.weight_key: pad(matrix.data, lengths, 0),
        }

    def _categories_of(self, ids: np.ndarray) -> np.ndarray:
        return ids.astype(object)


def stored_numbers(table: Table, key: Key) -> scipy.sparse.csr_array:
    """Return a sparse matrix, or raise ValueError if not all of it is finite."""
    matrix = table.sparse(key)
    wrong = matrix.data[~np.isfinite(matrix.data)]
    if wrong.size:
        found = "NaN" if np.isnan(wrong[0]) else "infinity (inf)"
        raise ValueError(
            f"The sparse matrix {key!r} holds {found}, which is not allowed. "
            "Replace it by a number; what is not stored counts as zero."
        )
    return matrix
