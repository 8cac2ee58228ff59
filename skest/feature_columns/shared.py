# SPDX-License-Identifier: Apache-2.0
"""`shared_embeddings`: one table of vectors for several categorical columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from skest.core.checks import check_integer
from skest.feature_columns.base import (
    CategoricalColumn,
    check_categorical,
    innermost,
)
from skest.feature_columns.categorical import KeyedCategoricalColumn
from skest.feature_columns.dense import EmbeddingColumn, Initializer
from skest.feature_columns.table import Key, Table
from skest.feature_columns.vocabulary import VocabularyListColumn


def shared_embeddings(
    categorical_columns: Sequence[CategoricalColumn],
    dimension: int | str,
    combiner: str = "mean",
    initializer: Initializer | None = None,
    shared_embedding_collection_name: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> list["SharedEmbeddingColumn"]:
    """Give the ids of several categorical columns vectors from one table.

    It is for columns that hold the same things, such as the product in view and the
    products bought before. Both look-ups train the table.

    Parameters
    ----------
    categorical_columns : sequence of CategoricalColumn
        Columns of one kind (weighted ones and sequences count as what they contain) and
        with the same number of ids. Vocabularies that are not given are learned from
        the values of all columns together, and so are the same; these columns must
        agree in all parameters but the key. Given vocabularies may differ, as in
        TensorFlow, but not in the order alone.
    dimension : int or "auto"
        Length of the vectors, see `embedding_column`.
    combiner : {"mean", "sqrtn", "sum"}, default="mean"
        How the vectors of a cell with several values become one.
    initializer : callable or None, default=None
        See `embedding_column`.
    shared_embedding_collection_name : str or None, default=None
        Name of the table. None is made of the sorted names of the columns,
        ``<a>_<b>_shared_embedding``.
    max_norm : float or None, default=None
        Longer vectors (L2 norm) are scaled to this length at look-up.
    trainable : bool, default=True
        Whether training changes the table.

    Returns
    -------
    list of SharedEmbeddingColumn
        One for each categorical column, in their order.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or the columns do not fit together.

    Notes
    -----
    The semantics are those of ``tf.feature_column.shared_embeddings``; learning is an
    addition.

    The columns of one list of feature columns share a table if its name is the same in
    all of them, and then `dimension` and `trainable` must be the same, too; copies and
    pickles share it like the originals. So a search sets them in all columns at once, as
    in ``[{"q__dimension": [d], "d__dimension": [d]} for d in (2, 4)]``. Columns in two
    lists, as in the wide and the deep part of a model, have a table in each. If
    initializers differ, that of the first column by name is used.

    Examples
    --------
    >>> from skest.feature_columns import (
    ...     DenseFeatures,
    ...     FeatureColumns,
    ...     categorical_column_with_vocabulary_list,
    ...     shared_embeddings,
    ... )
    >>> viewed = categorical_column_with_vocabulary_list("viewed")
    >>> bought = categorical_column_with_vocabulary_list("bought")
    >>> columns = FeatureColumns(shared_embeddings([viewed, bought], dimension=2))
    >>> X = {"viewed": ["a", "c"], "bought": [["b", "c"], ["a"]]}
    >>> for name, table in DenseFeatures(columns.fit(X)).named_parameters():
    ...     print(name, tuple(table.shape))
    bought_viewed_shared_embedding_weights (3, 2)
    """
    # As TensorFlow's shared_embeddings, which compares kinds and sizes.
    _check_columns(categorical_columns)
    return [
        SharedEmbeddingColumn(
            categorical_columns,
            position,
            dimension,
            combiner,
            initializer,
            shared_embedding_collection_name,
            max_norm,
            trainable,
        ).validated()
        for position in range(len(categorical_columns))
    ]


class SharedEmbeddingColumn(EmbeddingColumn):
    """Column made by `shared_embeddings`, where the other parameters are documented.

    It is defined by its parameters alone and knows the columns with which it shares the
    table by them, so that it can be copied and fitted by itself. To learn a vocabulary
    it reads the raw columns of all of them.

    Parameters
    ----------
    categorical_columns, dimension, combiner, initializer
        See `shared_embeddings`.
    position : int
        Which of the categorical columns this one embeds.
    shared_embedding_collection_name, max_norm, trainable
        See `shared_embeddings`.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    weights_ : ndarray of shape (num_buckets, size)
        The learned table, see `EmbeddingColumn`.
    """

    _of_table = ("categorical_columns", "dimension", "trainable")

    def __init__(
        self,
        categorical_columns: Sequence[CategoricalColumn],
        position: int,
        dimension: int | str,
        combiner: str = "mean",
        initializer: Initializer | None = None,
        shared_embedding_collection_name: str | None = None,
        max_norm: float | None = None,
        trainable: bool = True,
    ) -> None:
        self.categorical_columns = categorical_columns
        self.position = position
        self.dimension = dimension
        self.combiner = combiner
        self.initializer = initializer
        self.shared_embedding_collection_name = shared_embedding_collection_name
        self.max_norm = max_norm
        self.trainable = trainable

    @property
    def categorical_column(self) -> CategoricalColumn:  # type: ignore[override]
        """The categorical column at `position`."""
        return self.categorical_columns[self.position]

    @property
    def name(self) -> str:
        """Name of the categorical column and ``_shared_embedding``."""
        # As TensorFlow's SharedEmbeddingColumn is called.
        return f"{self.categorical_column.name}_shared_embedding"

    @property
    def table_name(self) -> str:
        """Name of the collection."""
        if self.shared_embedding_collection_name is not None:
            return self.shared_embedding_collection_name
        # Sorted, as shared_embeddings of TensorFlow has it: the order of the list must
        # not name another table.
        names = sorted(column.name for column in self.categorical_columns)
        return f"{'_'.join(names)}_shared_embedding"

    @property
    def _prefix(self) -> str:
        # A vocabulary that is learned from all columns gives other ids than that of the
        # categorical column alone, so that its entry cannot serve both.
        return f"{self.table_name}_"

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        encoded = super()._encoded(table)
        return {f"{self._prefix}{key}": values for key, values in encoded.items()}

    def _validate(self) -> None:
        if not self.__sklearn_is_fitted__():  # sizes of files need the files
            _check_columns(self.categorical_columns)
        owner, last = "a SharedEmbeddingColumn", len(self.categorical_columns) - 1
        check_integer(self.position, "position", owner, 0, last)
        name = self.shared_embedding_collection_name
        if name is not None and not (isinstance(name, str) and name):
            raise TypeError(
                "'shared_embedding_collection_name' of shared embeddings must be a "
                f"non-empty string or None; got {name!r}."
            )
        super()._validate()

    def _learn(self, table: Table) -> dict[str, Any]:
        sources = [innermost(column) for column in self.categorical_columns]
        # Its ids are given: nothing is learned from all columns together.
        if _given_size(sources[0]) is not None:
            return super()._learn(table)
        joined, weight = _joined([source.key for source in sources], table)
        # The column learns from the values of all as if they were its own.
        joined_table = Table({sources[self.position].key: joined})
        return super()._learn(joined_table.with_target(None, weight))


def _check_columns(columns: Any) -> None:
    """Raise unless columns can have one table."""
    if not isinstance(columns, list | tuple) or len(columns) == 0:
        raise ValueError(
            "'categorical_columns' of shared embeddings must be a non-empty list of "
            f"categorical columns; got {columns!r}."
        )
    for column in columns:
        # The first against each of the others: what is alike to it is alike among them.
        check_categorical(column, "shared embeddings")
        _check_pair(columns[0], column)


def _check_pair(first: CategoricalColumn, other: CategoricalColumn) -> None:
    """Raise ValueError unless the ids of two columns can mean the same."""
    a, b = innermost(first), innermost(other)
    where = f"Columns {first.name!r} and {other.name!r} cannot share an embedding"
    # An id of a hash and one of a vocabulary mean nothing in common.
    if type(a) is not type(b):
        raise ValueError(
            f"{where}, because they are of different kinds, {type(a).__name__} and "
            f"{type(b).__name__}. Use the same kind for both."
        )
    sizes = [_given_size(a), _given_size(b)]
    if sizes[0] != sizes[1]:
        known = ["what it learns" if size is None else f"{size}" for size in sizes]
        raise ValueError(
            f"{where}, because they must have the same number of ids; got {known[0]} and "
            f"{known[1]}. Give both the same vocabulary or number of buckets."
        )
    if sizes[0] is None:
        _check_learning(a, b, where)
    elif isinstance(a, VocabularyListColumn):
        _check_order(a, b, where)


def _check_order(a: Any, b: Any, where: str) -> None:
    """Raise ValueError if two columns give the same values other ids."""
    values, others = list(a.vocabulary), list(b.vocabulary)
    if values == others or set(values) != set(others):
        return
    i = next(i for i, value in enumerate(values) if value != others[i])
    raise ValueError(
        f"{where}, because their vocabularies have the same values in another order: id "
        f"{i} is {values[i]!r} in one and {others[i]!r} in the other. Give both the same "
        "'vocabulary_list'."
    )


def _check_learning(a: CategoricalColumn, b: CategoricalColumn, where: str) -> None:
    """Raise ValueError unless two columns can learn one vocabulary."""
    if not isinstance(a, KeyedCategoricalColumn):
        raise ValueError(
            f"{where}, because what ids mean is learned for each of them. Give their "
            "'boundaries' as numbers."
        )
    # Another threshold or other buckets would be another vocabulary of the same values.
    options, others = a.get_params(deep=False), b.get_params(deep=False)
    for name in options:
        if name != "key" and options[name] != others[name]:
            raise ValueError(
                f"{where}, because they differ in {name!r}, {options[name]!r} and "
                f"{others[name]!r}, and so would not learn the same vocabulary. Use the "
                "same value for both."
            )


def _given_size(column: CategoricalColumn) -> int | None:
    """Return the number of ids, or None if the data are to decide it."""
    try:
        # A copy without what was learned: of fitted columns, too, what was given
        # counts.
        return type(column)(**column.get_params(deep=False)).num_buckets
    except NotFittedError:
        return None


def _joined(keys: Sequence[Key], table: Table) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the cells of all raw columns below one another, and their weights."""
    columns = [table.factorized(key) for key in keys]
    strings = [k for k, c in zip(keys, columns, strict=True) if c.are_strings]
    integers = [k for k, c in zip(keys, columns, strict=True) if c.are_integers]
    if strings and integers:
        raise ValueError(
            f"Columns with a shared embedding must all hold strings or all integers; "
            f"{strings[0]!r} holds strings and {integers[0]!r} integers. Convert one."
        )
    # Behind the distinct values, where the code of a missing one, -1, finds it.
    no_value = np.array([None])
    # Cells of one column may hold lists, those of another a single value.
    width = max(cells.codes.size for cells in columns) // table.n_rows
    values = np.full((len(columns), table.n_rows, width), None)
    for block, cells in zip(values, columns, strict=True):
        found = np.append(cells.distinct, no_value)[cells.codes]
        found = found.reshape(table.n_rows, -1)
        block[:, : found.shape[1]] = found
    # A row has a cell in each column, and its weight in each block.
    weights = None if table.weight is None else np.tile(table.weight, len(columns))
    return values.reshape(-1, width), weights
