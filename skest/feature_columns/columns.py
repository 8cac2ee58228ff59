# SPDX-License-Identifier: Apache-2.0
"""`FeatureColumns`: the columns of one model, as one transformer."""

import copy
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from sklearn.base import TransformerMixin
from torch import Tensor

from skest.core.checks import check_choice
from skest.core.sklearn_compat import BaseComposition, check_feature_names_in
from skest.feature_columns.base import (
    DenseColumn,
    FeatureColumn,
    FeaturesIn,
    as_csr,
    as_dense,
    checked_weight,
    innermost,
)
from skest.feature_columns.choice import chosen_columns
from skest.feature_columns.dense import CategoricalWrapper, EmbeddingColumn
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.statistics import EmptyColumnError
from skest.feature_columns.table import Key, Table

_WHOLE = "x"  # key of all columns of an array


class FeatureColumns(FeaturesIn, TransformerMixin, BaseComposition):
    """Feature columns of one model, fitted and encoded together.

    Parameters
    ----------
    columns : list of FeatureColumn, or list of (str, FeatureColumn)
        The columns. With names, parameters of the columns are reached as
        ``<name>__<parameter>``; without, the name of the column is used.
    sparse_output : bool, default=False
        Whether `transform` returns a CSR matrix. It saves memory where most columns are
        one-hot.
    remainder : {"infer", "drop"} or None, default=None
        What becomes of columns of X that no feature column reads: "infer" chooses
        feature columns for them, as `infer_feature_columns`; "drop" and None leave them
        out, and with None the `fit` of an estimator warns which these are.

    Attributes
    ----------
    columns_ : list of (str, FeatureColumn)
        The fitted columns.
    n_features_in_ : int
        Number of columns of X, if X was a frame or an array.
    feature_names_in_ : ndarray of str, shape (`n_features_in_`,)
        Names of the columns of X, if X was a frame whose names are all strings.

    See Also
    --------
    infer_feature_columns : Choose columns by a look at the data.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.feature_columns import (
    ...     FeatureColumns,
    ...     categorical_column_with_vocabulary_list,
    ...     indicator_column,
    ...     numeric_column,
    ... )
    >>> color = categorical_column_with_vocabulary_list("color")
    >>> columns = FeatureColumns(
    ...     [
    ...         ("size", numeric_column("size", normalizer="standard")),
    ...         ("color", indicator_column(color)),
    ...     ]
    ... )
    >>> X = pd.DataFrame({"size": [1.0, 3.0], "color": ["red", "blue"]})
    >>> columns.fit(X).encode(X)["color_ids"]
    tensor([[1],
            [0]])
    >>> columns.set_output(transform="pandas").transform(X)
       size  color_blue  color_red
    0  -1.0         0.0        1.0
    1   1.0         1.0        0.0
    """

    def __init__(
        self,
        columns: Sequence[Any],
        *,
        sparse_output: bool = False,
        remainder: str | None = None,
    ) -> None:
        self.columns = columns
        self.sparse_output = sparse_output
        self.remainder = remainder

    @property
    def _named_columns(self) -> list[tuple[str, FeatureColumn]]:
        """The parameter `columns` with a name for each column."""
        if not isinstance(self.columns, list | tuple):
            return []
        # Nothing is checked here: `get_params` must work, whatever is in the list.
        if all(isinstance(i, tuple | list) and len(i) == 2 for i in self.columns):
            return [tuple(item) for item in self.columns]
        reserved = set(self._get_param_names())
        named: dict[str, FeatureColumn] = {}
        for column in self.columns:
            # The ends of a name and two underscores divide it from a parameter's.
            stem = re.sub("__+", "_", str(getattr(column, "name", column))).strip("_")
            named[free_name(stem or "column", reserved | named.keys())] = column
        return list(named.items())

    @_named_columns.setter
    def _named_columns(self, value: list[tuple[str, FeatureColumn]]) -> None:
        self.columns = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, with ``deep=True`` also those of the columns."""
        return self._get_params("_named_columns", deep=deep)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of a column as ``<name>__<parameter>``."""
        return self._set_params("_named_columns", **params)

    @property
    def active(self) -> list[FeatureColumn]:
        """The columns that encode: fitted ones after `fit`, before it those given.

        Raises
        ------
        ValueError, TypeError
            If the parameter `columns` is wrong.
        """
        return [column for _, column in self._named_active]

    def _with_limits(self, X: Any) -> "FeatureColumns":
        """Return fitted columns that keep later numbers near those of these rows.

        See `NumericColumn._with_limit`.
        """
        table = Table(X)
        return self._with_numbers(lambda column: column._with_limit(table))

    def _with_wider_limits(self, X: Any) -> "FeatureColumns":
        """Return the columns with limits for these rows, too, where there are limits."""
        table = Table(X)
        return self._with_numbers(
            lambda column: (
                column._with_limit(table) if "limit_" in vars(column) else column
            )
        )

    def _without_limits(self) -> "FeatureColumns":
        """Return the columns without limits, for rows that nobody has seen yet."""
        return self._with_numbers(NumericColumn._without_limit)

    def _with_numbers(
        self, change: Callable[[NumericColumn], NumericColumn]
    ) -> "FeatureColumns":
        found = copy.copy(self)
        found.columns_ = [
            (name, change(column) if isinstance(column, NumericColumn) else column)
            for name, column in self.columns_
        ]
        return found

    @property
    def _named_active(self) -> list[tuple[str, FeatureColumn]]:
        if "columns_" in vars(self):
            return self.columns_
        self._validate()
        return self._named_columns

    @property
    def _described(self) -> list[Any]:
        named = vars(self).get("columns_", self._named_columns)
        return [column for _, column in named if isinstance(column, FeatureColumn)]

    @property
    def _parts(self) -> list[FeatureColumn]:
        return [c for _, c in self._named_columns if isinstance(c, FeatureColumn)]

    def _validate(self) -> None:
        if not isinstance(self.columns, list | tuple) or len(self.columns) == 0:
            raise ValueError(
                "'columns' of FeatureColumns must be a non-empty list of feature columns; "
                f"got {self.columns!r}."
            )
        check_choice(
            self.remainder, "remainder", "FeatureColumns", (None, "drop", "infer")
        )
        _check_form(self.columns)
        named = self._named_columns
        for _, column in named:
            column.validated()
        # scikit-learn's own rules: each name once, none of a parameter, and no "__" in
        # it.
        self._validate_names([name for name, _ in named])
        _check_distinct([column for _, column in named])
        _check_tables([column for _, column in named])

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from X what the columns leave open.

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
        FeatureColumns
            The object itself.

        Raises
        ------
        ValueError, TypeError
            If a parameter is wrong, or X is nothing that all columns can take, or a
            column has vectors that a network has learned, as those of the
            ``feature_columns_`` of an estimator: to keep them in a Pipeline, put the
            columns into `sklearn.frozen.FrozenEstimator`. What an earlier fit learned
            stays.
        """
        return self._fit(X, y, sample_weight)

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, *, some_may_be_empty: bool = False
    ) -> Self:
        """Learn from X; columns without values there may be left out."""
        # Before anything is learned, so that a refusal leaves all as it was.
        for _, column in vars(self).get("columns_", ()):
            column.check_refit()
        self._validate()
        table = Table(X)
        named = self._named_columns
        if self.remainder == "infer":
            # A categorical column among those given tells that a linear model is meant.
            is_dense = all(isinstance(column, DenseColumn) for _, column in named)
            kind = "dense" if is_dense else "linear"
            named = self.with_inferred(table, table.keys, kind)._named_columns
        table = table.with_target(y, checked_weight(sample_weight, table))
        # All before any is kept, so that what an earlier fit learned outlives a refusal.
        fitted = []
        for i, (name, column) in enumerate(named, 1):
            try:
                fitted.append((name, column._fitted_alone(table)))
            except EmptyColumnError:
                if not some_may_be_empty or (i == len(named) and not fitted):
                    raise
        self.columns_ = fitted
        self._remember_features(table)
        return self

    def with_inferred(self, X: Any, keys: Sequence[Key], kind: str) -> "FeatureColumns":
        """Return columns that also read what is left over of a table.

        Parameters
        ----------
        X : DataFrame, dict of arrays, array or Table
            Training data.
        keys : sequence of str or int
            Of all its columns, each once.
        kind : {"dense", "linear", "sequence", "context"}
            As in `infer_feature_columns`.
        """
        _, inferred = chosen_columns(Table(X), unread_keys(keys, [self]), kind)
        named = dict(self._named_columns)
        # A name of the user's may be that of an inferred column: the user's stays.
        for stem, column in FeatureColumns(inferred)._named_columns:
            named[free_name(stem, named.keys())] = column
        return FeatureColumns(
            list(named.items()), sparse_output=self.sparse_output, remainder="drop"
        )

    def training_features(
        self, X: Any, y: Any, sample_weight: Any = None, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return what rows to train on have in place of what `encode` gives.

        A column that learns from labels, as `target_statistics_column` does, must not
        encode a row by what its own label taught, and one with an `unknown_rate` hides
        values. Estimators of scikit-learn's kind see to it; for an `input_fn`, put these
        columns beside the others, and `encode` takes them.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. For rows that come after it, `y` is None: columns give what `fit`
            has learned, without the labels of equal rows.
        seed : int or None, default=None
            Of all that is random; None takes one from the operating system.

        Returns
        -------
        dict of str to ndarray
            Columns for X, if it is a dict; empty if no column needs some.

        Examples
        --------
        >>> from skest.feature_columns import (
        ...     FeatureColumns,
        ...     categorical_column_with_vocabulary_list,
        ...     target_statistics_column,
        ... )
        >>> town = categorical_column_with_vocabulary_list("town")
        >>> columns = FeatureColumns([target_statistics_column(town)])
        >>> X, y = {"town": ["Bern", "Oslo"] * 5}, [0.0, 1.0] * 5
        >>> features = X | columns.fit(X, y).training_features(X, y, seed=0)
        >>> columns.encode(features)["town_target_statistics"].shape
        torch.Size([10, 2])
        """
        table = self._table(X).with_target(y)
        generator = np.random.default_rng(seed)
        found: dict[str, np.ndarray] = {}
        for column in self.active:
            found |= column.training_features(table, sample_weight, generator)
        return found

    def encode(self, X: Any, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Turn raw cells into what the network takes.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Raw data.
        dtype : torch.dtype, default=torch.float32
            Type of the numbers.

        Returns
        -------
        dict of str to Tensor
            Under `FeatureColumn.encoded_key`: numbers of shape (n_rows, size), or int64
            ids of shape (n_rows, n_values), where -1 stands for no id. Columns over the
            same categorical column share an entry. Sequence columns add their lengths
            under `FeatureColumn.length_key`, weighted ones their weights, numbers of the
            shape of the ids, under `FeatureColumn.weight_key`.

        Raises
        ------
        ValueError
            If the columns cannot take X, or sequences of a row differ in length.
        """
        table = self._table(X)
        # An indicator and an embedding of one column read the same ids, which are made
        # once.
        sources = {column.encoded_key: column for column in self.active}
        # All arrays before all tensors: for a row, to go to and fro takes longer.
        by_name = {column.name: column for column in sources.values()}
        arrays = {name: column._encoded(table) for name, column in by_name.items()}
        encoded: dict[str, Tensor] = {}
        for name in list(arrays):
            # Each array is let go of when its tensor is there: cast to another type,
            # all of them would be in memory twice.
            for key, values in arrays.pop(name).items():
                tensor = torch.from_numpy(values)
                if tensor.is_floating_point() and tensor.dtype != dtype:
                    tensor = tensor.to(dtype)
                    # The column has checked its own type.
                    _check_finite(tensor, by_name[name])
                encoded[key] = tensor
        # SequenceFeatures puts the columns side by side, step by step.
        _check_lengths(
            {
                column.name: encoded[column.length_key]
                for column in sources.values()
                if column.length_key is not None
            }
        )
        return encoded

    def inverse(self, encoded: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the categories that encoded ids stand for.

        Parameters
        ----------
        encoded : dict of str to Tensor or ndarray
            What `encode` returned, or some rows of it. Entries that are no ids are
            ignored.

        Returns
        -------
        dict of str to ndarray of object
            Categories in the shape of the ids, by the name of the column in the
            parameter `columns`, see `CategoricalColumn.inverse`. Columns without
            categories are left out: numbers, hash buckets and crosses.

        Raises
        ------
        ValueError, TypeError
            If ids of a column are missing, no integers or out of range.

        Examples
        --------
        >>> from skest.feature_columns import (
        ...     FeatureColumns,
        ...     categorical_column_with_vocabulary_list,
        ...     embedding_column,
        ... )
        >>> color = categorical_column_with_vocabulary_list("color", ["blue", "red"])
        >>> columns = FeatureColumns([("color", embedding_column(color, 2))])
        >>> columns.inverse(columns.encode({"color": ["red", "green"]}))
        {'color': array([['red'],
               [None]], dtype=object)}
        """
        active: list[tuple[str, Any]] = self._named_active
        return {
            name: column.inverse(_entry(encoded, column))
            for name, column in active
            if getattr(innermost(column), "has_inverse", False)
        }

    def transform(self, X: Any) -> Any:
        """Turn raw cells into a plain matrix for any other estimator.

        Numbers are scaled, categories become counts of their ids, embeddings the
        learned vectors; the columns are in the order of the parameter `columns`.

        Parameters
        ----------
        X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
            Raw data.

        Returns
        -------
        ndarray or CSR matrix of shape (n_rows, n_outputs)
        """
        table = self._table(X)
        blocks = [column.matrix(table) for column in self.active]
        if not self.sparse_output:
            return np.hstack([as_dense(block) for block in blocks])
        return as_csr(scipy.sparse.hstack(blocks, format="csr"))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`.

        Parameters
        ----------
        input_features : sequence of str, default=None
            Names of the columns of X, only checked; the names that are returned follow
            from the names of the feature columns.

        Returns
        -------
        ndarray of str, shape (n_outputs,), dtype object
            Those of the columns. If one of them occurs twice, as with a categorical column
            beside its indicator, all have the name of their column in the parameter
            `columns` before them, ``<name>__<output>``, as has every output of
            `sklearn.compose.ColumnTransformer`.
        """
        # Only a check, as scikit-learn demands of every transformer.
        check_feature_names_in(self, input_features, generate_names=False)
        names = [
            (prefix, output)
            for prefix, column in self._named_active
            for output in column.get_feature_names_out()
        ]
        plain = [output for _, output in names]
        # All or none: who reads a name need not ask which ones were doubled.
        if len(set(plain)) < len(plain):
            plain = [f"{prefix}__{output}" for prefix, output in names]
        return np.array(plain, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return "columns_" in vars(self)


def free_name(stem: str, taken: Set[str]) -> str:
    """Return a name that is not taken, with a number behind it if need be."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    return name


def unread_keys(keys: Sequence[Key], columns: Sequence[FeatureColumns]) -> list[Key]:
    """Return keys of a table that no column reads, by name or by position."""
    several = [column for some in columns for column in some.active]
    read = {key for column in several for key in column.feature_keys}
    # Who reads an array as a whole reads all of its columns.
    if _WHOLE in read and _WHOLE not in keys:
        return []
    return [key for i, key in enumerate(keys) if key not in read and i not in read]


def as_feature_columns(columns: Any) -> FeatureColumns:
    """Return `FeatureColumns` as they are, and a list of columns as `FeatureColumns`.

    Examples
    --------
    >>> from skest.feature_columns import numeric_column
    >>> from skest.feature_columns.columns import as_feature_columns
    >>> as_feature_columns([numeric_column("x")])
    FeatureColumns(columns=[NumericColumn(key='x')])
    """
    if isinstance(columns, FeatureColumns):
        return columns
    return FeatureColumns(columns)


def _check_form(columns: Sequence[Any]) -> None:
    """Raise TypeError unless there are columns only, or pairs of name and column only."""
    are_named = isinstance(columns[0], tuple | list)
    for position, item in enumerate(columns):
        match item:
            case [str(), FeatureColumn()] if are_named:
                continue
            case FeatureColumn() if not are_named:
                continue
        raise TypeError(
            "'columns' of FeatureColumns must hold feature columns, such as "
            "numeric_column('age'), or all of them in pairs with a name, such as "
            f"('age', numeric_column('age')); got {item!r} at position {position}."
        )


def _entry(encoded: Mapping[str, Any], column: FeatureColumn) -> Any:
    """Return what a column has encoded."""
    if column.encoded_key not in encoded:
        raise ValueError(
            f"'encoded' must hold the ids of column {column.name!r} under "
            f"{column.encoded_key!r}; got {list(encoded)}. Give it the result of encode."
        )
    return encoded[column.encoded_key]


def _check_finite(tensor: Tensor, column: FeatureColumn) -> None:
    """Raise ValueError if a number is infinite; NaN is not looked for."""
    # The sum is finite only if all numbers are, and takes a twentieth of the time.
    if not math.isfinite(tensor.sum()) and (places := torch.isinf(tensor)).any():
        is_numeric = isinstance(column, NumericColumn) and column.length_key is None
        element = int(places.any(0).nonzero()[0]) if is_numeric else 0
        where = column._element(element) if is_numeric else f"Column {column.name!r}"
        raise ValueError(
            f"{where} holds a number that is infinite (inf) when it is scaled and cast to "
            f"{tensor.dtype}. Replace it, or clip the column."
        )


def _check_distinct(columns: list[FeatureColumn]) -> None:
    """Raise ValueError if two columns want the same name or the same encoded entry."""
    by_name: dict[str, FeatureColumn] = {}
    by_key: dict[str, FeatureColumn] = {}
    for column in columns:
        if column.name in by_name:
            raise ValueError(
                f"Two feature columns have the name {column.name!r}. Leave one out, or "
                "give X the raw column a second time under another name."
            )
        by_name[column.name] = column
        # All over one categorical column read the same ids.
        is_over = isinstance(column, CategoricalWrapper)
        source = column.categorical_column if is_over else column
        # The result of `encode` is one dictionary: two columns may share an entry, if
        # it is the same.
        keys = (column.encoded_key, column.length_key, column.weight_key)
        for key in filter(None, keys):
            other = by_key.setdefault(key, source)
            if not same(other, source):
                raise ValueError(
                    f"Two feature columns encode {key!r} in different ways: {other!r} and "
                    f"{source!r}. Make them equal, or give X the raw column a second time "
                    "under another name."
                )


def _check_tables(columns: list[FeatureColumn]) -> None:
    """Raise ValueError if columns share a table that they describe differently."""
    by_table: dict[str, EmbeddingColumn] = {}
    for column in columns:
        if not isinstance(column, EmbeddingColumn):
            continue
        first = by_table.setdefault(column.table_name, column)
        # What belongs to a look-up and not to the table, such as the combiner, may
        # differ.
        described, expected = column.table_parameters, first.table_parameters
        for parameter in described | expected:
            if not same(described.get(parameter), expected.get(parameter)):
                raise ValueError(
                    f"The feature columns {first.name!r} and {column.name!r} share the "
                    f"table {column.table_name!r} but differ in {parameter!r}: "
                    f"{expected.get(parameter)!r} and {described.get(parameter)!r}. Set "
                    "it to the same value in both, or give one of them a table of its "
                    "own by 'shared_embedding_collection_name'."
                )


def _check_lengths(lengths: dict[str, Tensor]) -> None:
    """Raise ValueError if the sequences of a row differ in length, by column name."""
    for name, values in lengths.items():
        first = next(iter(lengths))
        different = torch.nonzero(values != lengths[first])
        if len(different):
            row = int(different[0])
            raise ValueError(
                "The sequences of one row must have the same length; in row "
                f"{row}, column {first!r} has {int(lengths[first][row])} steps and column "
                f"{name!r} has {int(values[row])}. Cut or fill one of them."
            )


def same(a: Any, b: Any) -> bool:
    """Tell whether two parameters say the same, also if one is a copy of the other.

    Columns are equal by their classes and parameters; lists, tuples, arrays, Series and
    whatever else is a collection by their elements; mappings by their entries; partial
    functions by what they consist of. Anything else decides for itself, other functions
    by identity.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.columns import same
    >>> same(np.array(["a", "b"]), ["a", "b"])
    True
    """
    if a is b:
        return True
    if isinstance(a, FeatureColumn):
        return type(a) is type(b) and same(
            a.get_params(deep=False), b.get_params(deep=False)
        )
    # To Python, two of them are never equal; and `clone` copies those among the
    # parameters.
    if isinstance(a, partial) and isinstance(b, partial):
        return a.func is b.func and same((a.args, a.keywords), (b.args, b.keywords))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if _is_listed(a) or _is_listed(b):
        return (
            _is_listed(a)
            and _is_listed(b)
            and len(a) == len(b)
            and all(map(same, a, b))
        )
    return bool(a == b)


def _is_listed(value: Any) -> bool:
    """Whether it is a collection of elements in an order."""
    # A set has no order in which to compare its elements, and a string is one value.
    return isinstance(value, Collection) and not isinstance(
        value, str | bytes | Mapping | Set
    )
