# SPDX-License-Identifier: Apache-2.0
"""`FeatureColumn` and its two kinds: dense and categorical columns.

A column is a description: it says which raw columns it reads and what becomes of their
cells. `encode` gives what the network takes, numbers or ids; the network holds the
weights (`skest.feature_columns.modules`).
"""

from collections.abc import Hashable
from typing import Any, Self, TypeAlias

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

from skest._compat import check_sample_weight
from skest.feature_columns.table import Key, Table

__all__ = [
    "CategoricalColumn",
    "DenseColumn",
    "FeatureColumn",
    "FittedPart",
    "as_dense",
    "check_key",
    "one_hot",
]

# Sparse where most of it would be zeros.
Matrix: TypeAlias = np.ndarray | scipy.sparse.sparray


class FeatureColumn(TransformerMixin, BaseEstimator):
    """Base class of all feature columns, itself a scikit-learn transformer.

    The class of a column stores its parameters; the function that makes it documents
    and checks them. What data must decide (a vocabulary, a mean) is learned by `fit`; a
    column that leaves nothing open works without.

    A subclass says `name` and `feature_keys`, and defines ``_validate``, ``_learn``,
    ``_encoded``, ``_matrix`` and ``_output_names``.
    """

    @property
    def name(self) -> str:
        """Name of the column, from which its weights have theirs."""
        raise NotImplementedError

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of the raw columns that this one reads."""
        raise NotImplementedError

    @property
    def encoded_key(self) -> str:
        """Key of what the network reads, in the result of `encode`."""
        return self.name

    @property
    def length_key(self) -> str | None:
        """Key of the lengths in the result of `encode`, if cells are sequences."""
        return None

    @property
    def weight_key(self) -> str | None:
        """Key of the weights of the ids in the result of `encode`, if they have some."""
        return None

    @property
    def encoder(self) -> "FeatureColumn":
        """Column that encodes for this one: itself, unless it only wraps another."""
        return self

    @property
    def allows_missing(self) -> bool:
        """Whether a missing cell is fine everywhere in this column."""
        return True

    def _validate(self) -> None:
        """Raise if a parameter is wrong."""

    def _learn(self, table: Table, sample_weight: np.ndarray | None) -> dict[str, Any]:
        """Return the learned attributes by name."""
        return {}

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _matrix(self, table: Table) -> Matrix:
        """Return the plain matrix of shape (n_rows, n_outputs)."""
        raise NotImplementedError

    def _output_names(self) -> list[str]:
        raise NotImplementedError

    def validated(self) -> Self:
        """Return the column itself after a check of its parameters."""
        self._validate()
        return self

    def fitted(self, table: Table, sample_weight: np.ndarray | None) -> Self:
        """Return a fitted copy; the column itself stays as it is.

        Parameters
        ----------
        table : Table
            Training data.
        sample_weight : ndarray of float64, shape (n_rows,), or None
            Weight of each row.
        """
        column = type(self)(**self.get_params(deep=False)).validated()
        column.__dict__.update(column._learn(table, sample_weight))
        return column

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from X what the column leaves open.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Training data; see `skest.feature_columns.table.Table`.
        y : None
            Not used.
        sample_weight : array-like of shape (n_rows,), default=None
            Weights of the rows.

        Returns
        -------
        FeatureColumn
            The column itself.

        Raises
        ------
        ValueError
            If a parameter is wrong, or X lacks a column or has cells that this column
            cannot take. What an earlier fit learned stays.
        """
        table = Table(X)
        if sample_weight is not None:
            sample_weight = check_sample_weight(
                sample_weight,
                np.empty(table.n_rows),
                dtype=np.float64,
                ensure_non_negative=True,
            )
        fitted = self.fitted(table, sample_weight)
        fitted.encode(table)  # refuses what the column cannot take
        self._adopt(fitted)
        return self

    def _adopt(self, fitted: Self) -> None:
        """Replace what has been learned by what `fitted` has learned."""
        for name in [name for name in vars(self) if _is_learned(name)]:
            delattr(self, name)
        learned = {n: v for n, v in vars(fitted).items() if _is_learned(n)}
        self.__dict__.update(learned)

    def encode(self, X: Any) -> dict[str, np.ndarray]:
        """Turn raw cells into what the network takes.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Raw data.

        Returns
        -------
        dict of str to ndarray
            Numbers of shape (n_rows, size), or int64 ids of shape (n_rows, n_values)
            where -1 stands for no id. A sequence column gives numbers of shape (n_rows,
            n_steps, size) or ids of shape (n_rows, n_steps), and under `length_key` the
            lengths, int64 of shape (n_rows,). A weighted column adds, under
            `weight_key`, numbers of the shape of its ids.
        """
        self._validate()
        return self._encoded(Table(X))

    def matrix(self, table: Table) -> Matrix:
        """Return the plain matrix of shape (n_rows, n_outputs), maybe sparse."""
        if self.length_key is not None:
            raise ValueError(
                f"Column {self.name!r} is a sequence and cannot become a plain matrix. "
                "Use a network that takes sequences, or a categorical column without "
                "'sequence', which counts the values."
            )
        return self._matrix(table)

    def transform(self, X: Any) -> np.ndarray:
        """Turn raw cells into a plain matrix: numbers, counts or learned vectors.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Raw data.

        Returns
        -------
        ndarray of shape (n_rows, n_outputs)
        """
        self._validate()
        return as_dense(self.matrix(Table(X)))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`.

        Parameters
        ----------
        input_features : None
            Not used; the names follow from the name of the column.

        Returns
        -------
        ndarray of str, shape (n_outputs,), dtype object
        """
        return np.array(self._output_names(), dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return any(_is_learned(name) for name in vars(self))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.dict = True
        tags.transformer_tags.preserves_dtype = []  # a parameter says it
        tags.input_tags.allow_nan = self.allows_missing
        tags.requires_fit = False
        return tags

    def _learned(self, attribute: str, remedy: str) -> Any:
        """Return a learned attribute, or raise NotFittedError."""
        if attribute not in vars(self):
            raise NotFittedError(
                f"Column {self.name!r} has not learned its {attribute.rstrip('_')} yet. "
                f"Call fit first, or {remedy}."
            )
        return vars(self)[attribute]


class DenseColumn(FeatureColumn):
    """Column whose output is a vector of `size` numbers; deep models take these."""

    @property
    def size(self) -> int:
        """Width of the output."""
        raise NotImplementedError


class CategoricalColumn(FeatureColumn):
    """Column whose cells become ids from 0 to ``num_buckets - 1``.

    Linear models take it as it is; for a deep model it is wrapped in `indicator_column`
    or `embedding_column`. Its `transform` gives counts of the ids, as
    `indicator_column` does.
    """

    @property
    def num_buckets(self) -> int:
        """Number of ids."""
        raise NotImplementedError

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all cells, and which cells hold a value at all.

        Returns
        -------
        ids : ndarray of int64, shape (n_rows, n_values)
            -1 stands for no id: the cell is missing, or its value is out of vocabulary.
        present : ndarray of bool, shape (n_rows, n_values)
            False where the cell is missing.
        """
        raise NotImplementedError

    @property
    def encoded_key(self) -> str:
        """Key of the ids, apart from that of a numeric column of the same name."""
        return f"{self.name}_ids"

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        return {self.encoded_key: self.ids(table)[0]}

    def _matrix(self, table: Table) -> Matrix:
        return one_hot(self.ids(table)[0], self.num_buckets)

    def _output_names(self) -> list[str]:
        return [f"{self.name}_{bucket}" for bucket in self._bucket_names()]

    def _bucket_names(self) -> list[str]:
        return [str(bucket) for bucket in range(self.num_buckets)]


class FittedPart:
    """A column inside another one: as given, or its fitted copy.

    Descriptor of a read-only attribute. The parameter `name` holds the column as the
    user gave it, the attribute ``<name>_`` the copy that `fit` makes.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, column: Any, owner: type | None = None) -> Any:
        fitted = vars(column).get(f"{self.name}_")
        return getattr(column, self.name) if fitted is None else fitted


def check_key(key: Any, owner: str, parameter: str = "key") -> None:
    """Raise TypeError unless `key` is the name or position of a raw column."""
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(
            f"'{parameter}' of {owner} must be the name (str) or position (int) of a raw "
            f"column; got {key!r}."
        )


def as_dense(matrix: Matrix) -> np.ndarray:
    """Return a matrix, sparse or not, as an ndarray."""
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def one_hot(
    ids: np.ndarray, num_buckets: int, weights: np.ndarray | None = None
) -> scipy.sparse.csr_array:
    """Count the ids of each row, or sum their weights.

    Parameters
    ----------
    ids : ndarray of int64, shape (n_rows, n_values)
        Ids below `num_buckets`; -1 counts nowhere.
    num_buckets : int
        Width of the result.
    weights : ndarray of float, shape (n_rows, n_values), default=None
        What an id counts; None is one.

    Returns
    -------
    csr_array of shape (n_rows, num_buckets)
        Of the type of `weights`, float32 without.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.base import one_hot
    >>> one_hot(np.array([[0, 2, 2], [-1, -1, 1]]), 3).toarray()
    array([[1., 0., 2.], [0., 1., 0.]], dtype=float32)
    """
    present = ids >= 0
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    added = np.ones(ends[-1], np.float32) if weights is None else weights[present]
    shape = (len(ids), num_buckets)
    counts = scipy.sparse.csr_array((added, ids[present], ends), shape=shape)
    counts.sum_duplicates()
    return counts


def _is_learned(name: Hashable) -> bool:
    return isinstance(name, str) and name.endswith("_") and not name.startswith("_")
