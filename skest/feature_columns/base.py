# SPDX-License-Identifier: Apache-2.0
"""`FeatureColumn` and its kinds: dense, categorical, and columns over others."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import scipy.sparse
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

from skest.core.console import html_table
from skest.core.sklearn_compat import (
    CachedParameterNames,
    check_feature_names_in,
    check_sample_weight,
    get_output_config,
)
from skest.feature_columns.describe import Description, describe
from skest.feature_columns.sources import is_key
from skest.feature_columns.table import Key, Table


class FeaturesIn:
    """Mixin of transformers that read columns of X by key.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of X, if X was a frame or an array.
    feature_names_in_ : ndarray of str, shape (n_features_in_,)
        Names of the columns of X, if X was a frame whose names are all strings.
    """

    def _remember_features(self, table: Table) -> None:
        """Keep number and names of the columns, and forget those of an earlier fit."""
        for name, value in (
            ("n_features_in_", table.n_features),
            ("feature_names_in_", table.feature_names),
        ):
            # A dict has neither: what a frame had must not be asked of it.
            self.__dict__.pop(name, None)
            if value is not None:
                setattr(self, name, value)

    @property
    def _described(self) -> list[Any]:
        """Columns that the HTML view has a line for."""
        return [self]

    @property
    def _parts(self) -> "Iterable[FeatureColumn]":
        """Columns that this one consists of."""
        raise NotImplementedError

    @property
    def allows_missing(self) -> bool:
        """Whether a missing cell is fine everywhere."""
        return all(part.allows_missing for part in self._parts)

    @property
    def takes_sparse(self) -> bool:
        """Whether a sparse matrix is read."""
        parts = list(self._parts)
        # A column without others inside reads cells, unless it says something else.
        return bool(parts) and all(part.takes_sparse for part in parts)

    @property
    def needs_fit(self) -> bool:
        """Whether something is open that `fit` has to learn."""
        return any(part.needs_fit for part in self._parts)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        # What scikit-learn's own checks, and pipelines around the columns, go by.
        tags.input_tags.dict = True
        tags.transformer_tags.preserves_dtype = []  # parameters of columns say it
        tags.input_tags.allow_nan = self.allows_missing
        tags.input_tags.sparse = self.takes_sparse
        tags.requires_fit = self.needs_fit
        return tags

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram, and what each column is and has learned."""
        described = list(self._described)
        n_columns = f"{len(described)} feature column" + "s" * (len(described) != 1)
        table = html_table(n_columns, Description._fields, describe(described))
        return f"{super()._html_repr()}{table}"  # type: ignore[misc]

    def _table(self, X: Any) -> Table:
        """View X by the names that `fit` saw, if it saw any."""
        n_features = vars(self).get("n_features_in_")
        names = vars(self).get("feature_names_in_")
        table = Table(X)
        # A Table has the right names already, and the columns of a dict have no order.
        if table is X or table.n_features is None or n_features is None:
            return table
        if table.feature_names is None or names is None:
            if table.n_features != n_features:
                raise ValueError(
                    f"X has {table.n_features} features, but {type(self).__name__} is "
                    f"expecting {n_features} features as input."
                )
            # Names on one side only: columns go by their positions, as in scikit-learn.
            if table.feature_names is not names and not issparse(X):
                return Table(np.asarray(X), feature_names=names)
        return table if names is None else Table(X, feature_names=names)


# Sparse where most of it would be zeros.
Matrix: TypeAlias = np.ndarray | scipy.sparse.sparray


class FeatureColumn(CachedParameterNames, FeaturesIn, TransformerMixin, BaseEstimator):
    """Base class of all feature columns, itself a scikit-learn transformer.

    The class of a column stores its parameters; the function that makes it documents
    and checks them. What data must decide (a vocabulary, a mean) is learned by `fit`; a
    column that leaves nothing open works without.

    A subclass has the parameter `key`, or says `name` and `feature_keys`; and it defines
    ``_validate``, ``_learn``, ``_encoded``, ``_matrix`` and ``_output_names``, see
    `DenseColumn`.
    """

    key: Key
    _transforms_to_sparse: bool

    @property
    def name(self) -> str:
        """Name of the column, from which its weights have theirs: the key, at first."""
        return str(self.key)

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of the raw columns that this one reads: the parameter `key` alone."""
        return (self.key,)

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
    def _parts(self) -> "Iterator[FeatureColumn]":
        """Columns among the parameters."""
        return _columns_among(self.get_params(deep=False).values())

    def _validate(self) -> None:
        """Raise if a parameter is wrong."""

    def _learn(self, table: Table) -> dict[str, Any]:
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
            Training data, with their target.
        sample_weight : ndarray of float64, shape (n_rows,), or None
            Weight of each row.
        """
        # Not sklearn.base.clone, which would copy a long vocabulary and check every
        # parameter.
        # A copy, so that what the user gave stays as it was given: `clone` and searches
        # need that.
        column = type(self)(**self.get_params(deep=False)).validated()
        table = table.with_target(table.target, sample_weight)
        column.__dict__.update(column._learn(table))
        return column

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from X what the column leaves open.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Training data; see `skest.feature_columns.table.Table`.
        y : array-like, default=None
            What is to be predicted; few columns learn from it.
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
            cannot take, or the column has vectors that a network has learned, which
            another fit would lose. What an earlier fit learned stays.
        """
        # A network's vectors cannot be learned from X.
        self.check_refit()
        table = Table(X)
        table = table.with_target(y, checked_weight(sample_weight, table))
        # Before anything is kept: what an earlier fit has learned outlives one that
        # fails.
        fitted = self._fitted_alone(table)
        # All of that goes: with other parameters, another fit may learn less.
        for name in [name for name in vars(self) if _is_learned(name)]:
            delattr(self, name)
        learned = {n: v for n, v in vars(fitted).items() if _is_learned(n)}
        self.__dict__.update(learned)
        return self

    def _fitted_alone(self, table: Table) -> Self:
        """Return a fitted copy that encodes the table and remembers its columns."""
        column = self.fitted(table, table.weight)
        # What cannot be encoded is said here, and not by the first prediction. With it,
        # 20 columns of numbers and a million rows take 57 ms, and 46 without.
        column.encode(table)
        column._remember_features(table)
        return column

    def check_refit(self) -> None:
        """Raise ValueError if a fit would lose what it cannot learn."""

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
            lengths, int64 of shape (n_rows,). A weighted column and a sparse matrix add,
            under `weight_key`, numbers of the shape of their ids.
        """
        if not self.__sklearn_is_fitted__():
            self._validate()
        return self._encoded(self._table(X))

    def training_features(
        self,
        table: Table,
        sample_weight: np.ndarray | None,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return what rows to train on have in place of what `encode` gives.

        See `FeatureColumns.training_features`.

        Parameters
        ----------
        table : Table
            Training data, with their target, or without it if they come after `fit`.
        sample_weight : ndarray of float64, shape (n_rows,), or None
            Weight of each row.
        generator : numpy.random.Generator
            Source of all random numbers.
        """
        return {}

    def matrix(self, table: Table) -> Matrix:
        """Return the plain matrix of shape (n_rows, n_outputs), maybe sparse."""
        # Two dimensions are all that scikit-learn's transformers may return.
        if self.length_key is not None:
            raise ValueError(
                f"Column {self.name!r} is a sequence and cannot become a plain matrix. "
                "Use a network that takes sequences, or a categorical column without "
                "'sequence', which counts the values."
            )
        return self._matrix(table)

    def transform(self, X: Any) -> Any:
        """Turn raw cells into a plain matrix: numbers, counts or learned vectors.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Raw data.

        Returns
        -------
        ndarray or CSR matrix of shape (n_rows, n_outputs)
            CSR from a column that is only categorical, ndarray from a dense one. With
            `set_output`, the DataFrame of either.
        """
        if not self.__sklearn_is_fitted__():
            self._validate()
        matrix = self.matrix(self._table(X))
        # As OneHotEncoder gives CSR; but pandas and polars have no place for a sparse
        # matrix.
        to_frame = get_output_config("transform", self)["dense"] != "default"
        if self._transforms_to_sparse and not to_frame:
            return as_csr(matrix)
        return as_dense(matrix)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`.

        Parameters
        ----------
        input_features : sequence of str, default=None
            Names of the columns of X, only checked; the names that are returned follow
            from the name of the column.

        Returns
        -------
        ndarray of str, shape (n_outputs,), dtype object
        """
        # Not taken for the names: a column may read X by position, and has one of its
        # own.
        check_feature_names_in(self, input_features, generate_names=False)
        return np.array(self._output_names(), dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return any(_is_learned(name) for name in vars(self))

    def _learned(self, attribute: str, remedy: str) -> Any:
        """Return a learned attribute, or raise NotFittedError."""
        if attribute not in vars(self):
            raise NotFittedError(
                f"Column {self.name!r} has not learned its {attribute.rstrip('_')} yet. "
                f"Call fit first, or {remedy}."
            )
        return vars(self)[attribute]


class DenseColumn(FeatureColumn):
    """Column whose output is a vector of `size` numbers; deep models take these.

    Examples
    --------
    One of your own says its numbers and their names; ``_learn`` returns what it learns
    from data, by the name of the attribute. `FeatureColumns` takes it beside others.

    >>> import numpy as np
    >>> from skest.feature_columns import DenseColumn
    >>> class TimeOfDay(DenseColumn):
    ...     size = 2
    ...
    ...     def __init__(self, key):
    ...         self.key = key
    ...
    ...     def _matrix(self, table):
    ...         angle = table.numbers(self.key) * np.pi / 12
    ...         return np.column_stack([np.sin(angle), np.cos(angle)])
    ...
    ...     def _output_names(self):
    ...         return [f"{self.key}_sin", f"{self.key}_cos"]
    >>> TimeOfDay("hour").transform({"hour": [6, 12]}).round(1)
    array([[ 1.,  0.],
           [ 0., -1.]])
    """

    _transforms_to_sparse = False  # not even if it is categorical, too

    @property
    def size(self) -> int:
        """Width of the output."""
        raise NotImplementedError

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        numbers = np.asarray(self._matrix(table))
        if numbers.dtype.kind != "f":  # int64 would stand for ids
            numbers = numbers.astype(np.promote_types(numbers.dtype, np.float32))
        return {self.encoded_key: numbers}


class CategoricalColumn(FeatureColumn):
    """Column whose cells become ids from 0 to ``num_buckets - 1``.

    Linear models take it as it is; for a deep model it is wrapped in `indicator_column`
    or `embedding_column`. Its `transform` gives counts of the ids, sparse as those of
    `sklearn.preprocessing.OneHotEncoder`, because there may be very many of them;
    `indicator_column` gives the same as a dense matrix.

    Attributes
    ----------
    is_summed : bool
        Whether what is learned of its ids is summed, whatever the combiner: weights are
        numbers of the data, or ids are of several raw columns.
    has_inverse : bool
        Whether ids can be turned back into categories; not if it hashes them.
    """

    is_summed: ClassVar[bool] = False
    has_inverse: ClassVar[bool] = True
    _transforms_to_sparse = True

    def _hidden_rows(self, n_rows: int) -> np.ndarray:
        """Return rows whose categories training takes for unknown; mostly none."""
        return np.zeros(n_rows, bool)

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

    def inverse(self, ids: Any) -> np.ndarray:
        """Return the categories that ids stand for.

        Parameters
        ----------
        ids : array-like of int
            Ids as `encode` gives them, of any shape.

        Returns
        -------
        ndarray of object, of the shape of `ids`
            Strings or integers; of a bucketized column intervals (`pandas.Interval`) of
            its scaled source. None where no category can be told: for -1, and for
            buckets that values out of vocabulary share.

        Raises
        ------
        TypeError
            If `ids` are no integers.
        ValueError
            If one is out of range, or the column hashes its values.

        Examples
        --------
        >>> from skest.feature_columns import categorical_column_with_vocabulary_list
        >>> column = categorical_column_with_vocabulary_list("color", ["red", "blue"])
        >>> column.inverse([[1], [-1]])
        array([['blue'],
               [None]], dtype=object)
        """
        ids = np.asarray(ids)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"'ids' must be integers; got dtype {ids.dtype}.")
        wrong = ids[(ids < -1) | (ids >= self.num_buckets)]
        if wrong.size:
            raise ValueError(
                f"Ids of column {self.name!r} must be from -1 to {self.num_buckets - 1}; "
                f"got {wrong.flat[0]}."
            )
        # None where there is no id, as OneHotEncoder.inverse_transform has it for what
        # is unknown.
        categories = np.full(ids.shape, None, dtype=object)
        present = ids >= 0
        categories[present] = self._categories_of(ids[present])
        return categories

    def _categories_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the categories of ids that are 0 or more, as objects."""
        raise ValueError(
            f"Column {self.name!r} hashes its values, and several may share an id, so "
            "that no category can be told from it. Use a vocabulary column instead."
        )

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


def check_key(key: Any, owner: str, parameter: str = "key") -> None:
    """Raise TypeError unless `key` is the name or position of a raw column."""
    if not is_key(key):
        raise TypeError(
            f"'{parameter}' of {owner} must be the name (str) or position (int) of a raw "
            f"column; got {key!r}."
        )


def checked_weight(sample_weight: Any, table: Table) -> np.ndarray | None:
    """Return weights of the rows of a table, as float64, after scikit-learn's check."""
    if sample_weight is None:
        return None
    # Only the length counts, and a Table is no array to scikit-learn.
    rows = np.empty(table.n_rows)
    weight: np.ndarray = check_sample_weight(
        sample_weight, rows, dtype=np.float64, ensure_non_negative=True
    )
    return weight


def check_categorical(column: Any, owner: str) -> None:
    """Raise unless what a column is over is categorical, and right itself."""
    if not isinstance(column, CategoricalColumn):
        raise TypeError(
            f"'categorical_column' of {owner} must be a categorical or bucketized "
            f"column; got {column!r}."
        )
    column.validated()


def as_dense(matrix: Matrix) -> np.ndarray:
    """Return a matrix, sparse or not, as an ndarray."""
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def as_csr(matrix: Matrix) -> Any:
    """Return a matrix in CSR form, of the kind that scikit-learn is configured for."""
    as_matrix = get_config()["sparse_interface"] == "spmatrix"
    return (scipy.sparse.csr_matrix if as_matrix else scipy.sparse.csr_array)(matrix)


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
    # Built as CSR at once: rows are in order already, and COO would have to sort them.
    present = ids >= 0
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    added = np.ones(ends[-1], np.float32) if weights is None else weights[present]
    shape = (len(ids), num_buckets)
    counts = scipy.sparse.csr_array((added, ids[present], ends), shape=shape)
    # An id that a cell holds twice counts twice, as in
    # tf.feature_column.indicator_column.
    counts.sum_duplicates()
    return counts


def _columns_among(values: Iterable[Any]) -> Iterator[FeatureColumn]:
    """Yield what are columns among parameters, also from lists of them."""
    for value in values:
        if isinstance(value, FeatureColumn):
            yield value
        # As among the keys of a cross, and the columns that share an embedding.
        elif isinstance(value, list | tuple):
            yield from _columns_among(value)


def _is_learned(name: Hashable) -> bool:
    # scikit-learn's convention, by which check_is_fitted goes as well.
    return isinstance(name, str) and name.endswith("_") and not name.startswith("_")


class OverCategorical(FeatureColumn):
    """Column over a categorical one, the parameter `categorical_column`."""

    categorical_column: CategoricalColumn

    @property
    def categorical(self) -> CategoricalColumn:
        """The categorical column, fitted if this one is."""
        return vars(self).get("categorical_column_", self.categorical_column)

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of the categorical column."""
        return self.categorical_column.feature_keys

    def _learn(self, table: Table) -> dict[str, Any]:
        fitted = self.categorical_column.fitted(table, table.weight)
        return {"categorical_column_": fitted}

    def training_features(
        self,
        table: Table,
        sample_weight: np.ndarray | None,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return those of the categorical column."""
        return self.categorical.training_features(table, sample_weight, generator)

    def inverse(self, ids: Any) -> np.ndarray:
        """Return the categories that ids stand for, see `CategoricalColumn.inverse`."""
        return self.categorical.inverse(ids)


class CategoricalOver(OverCategorical, CategoricalColumn):
    """Categorical column that has its ids from another one."""

    @property
    def num_buckets(self) -> int:
        """Number of ids."""
        return self.categorical.num_buckets

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all cells, and which cells hold a value at all."""
        return self.categorical.ids(table)

    def _bucket_names(self) -> list[str]:
        return self.categorical._bucket_names()


def innermost(column: Any) -> Any:
    """Return what gives the ids, inside of vectors, weights and sequences."""
    while isinstance(column, OverCategorical):
        column = column.categorical_column
    return column


class TrainedColumn(DenseColumn):
    """Dense column whose output needs what a network has learned, ``weights_``."""

    weights_: Any

    def check_refit(self) -> None:
        """Raise ValueError if there are learned vectors."""
        if "weights_" in vars(self):
            raise ValueError(
                f"Column {self.name!r} has vectors that a network has learned; to fit it "
                "again would lose them. Call transform only; in a Pipeline or "
                "ColumnTransformer, put the columns into sklearn.frozen.FrozenEstimator. "
                "To start anew, fit a clone."
            )

    @property
    def _trained_weights(self) -> Any:
        if "weights_" not in vars(self):
            raise NotFittedError(
                f"Column {self.name!r} has no vectors, because a network learns them, and "
                "copies made by clone have none. Take the feature columns of a fitted "
                "estimator; in a Pipeline or ColumnTransformer, put them into "
                "sklearn.frozen.FrozenEstimator, which keeps what they have learned."
            )
        return self.weights_
