# SPDX-License-Identifier: Apache-2.0
"""`target_statistics_column`: what the labels say of each category, as numbers."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from pandas.api.types import infer_dtype

from skest.feature_columns.base import (
    CategoricalColumn,
    DenseColumn,
    FittedPart,
    check_categorical,
)
from skest.feature_columns.table import Key, Table

_FOLDS = 5  # as sklearn.preprocessing.TargetEncoder
_MOST_CLASSES = 32
_CLASSES = ("string", "integer", "boolean")
_ROUNDING = 1e-9


def target_statistics_column(
    categorical_column: CategoricalColumn, smooth: float | str = "auto"
) -> "TargetStatisticsColumn":
    """Replace a category by the mean of its labels and by how often it occurs.

    For columns of many levels, beside an embedding. The means are shrunk towards that of
    all rows, the more so the fewer rows a level has. A number has one mean; two classes
    have one, the share of the second; more have a share each, of the 32 most frequent;
    several outputs have their own. Behind them is the logarithm of one plus the number
    of rows. All are standardised. A level that the training data lack has the mean of
    all rows, and no rows. Missing cells are such a level, too, if `categorical_column`
    has a `missing_bucket`; else they share mean and rows with levels it does not know.

    What a row's own label went into would tell the label. An estimator of skest trains
    on means that were learned without the row, in 5 folds, by way of
    `FeatureColumns.training_features`; predictions take those of all training rows, as
    does `transform`.

    Parameters
    ----------
    categorical_column : CategoricalColumn
        Any with one value in each cell.
    smooth : "auto" or float, default="auto"
        How many rows the mean of all rows counts like. "auto" is the empirical Bayes
        estimate of `sklearn.preprocessing.TargetEncoder`, which differs by level.

    Returns
    -------
    TargetStatisticsColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    `fit` takes floats, and arrays of two dimensions, as numbers, and other values of y
    as classes; without y there are no means. A weight of 2 counts like two equal rows.
    Predictions after `partial_fit` take the means of its first call, while the rows of
    each call are trained on those of the same call.

    Examples
    --------
    >>> from skest.feature_columns import (
    ...     categorical_column_with_vocabulary_list,
    ...     target_statistics_column,
    ... )
    >>> town = categorical_column_with_vocabulary_list("town")
    >>> column = target_statistics_column(town)
    >>> X = {"town": ["Bern", "Oslo", "Bern", "Oslo"]}
    >>> column.fit(X, [1.0, 3.0, 1.0, 3.0]).encode(X)[column.name]
    array([[-1.,  0.],
           [ 1.,  0.],
           [-1.,  0.],
           [ 1.,  0.]], dtype=float32)
    """
    return TargetStatisticsColumn(categorical_column, smooth).validated()


class Labelled(NamedTuple):
    """Rows of a categorical column, and what their labels say.

    Attributes
    ----------
    cells : ndarray or sparse array of shape (n_rows, ...)
        What the rows hold, see `CrossFittedColumn._cells`.
    values : ndarray of shape (n_rows, n_outputs)
        Labels as numbers; NaN is missing.
    weight : ndarray of shape (n_rows,), or None
        Weights of the rows.
    """

    cells: Any
    values: np.ndarray
    weight: np.ndarray | None

    def take(self, rows: np.ndarray) -> "Labelled":
        """Return some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Labelled(self.cells[rows], self.values[rows], weight)


class CrossFittedColumn(DenseColumn):
    """Numbers that labels say of categories, in training those of other rows' labels."""

    categorical = FittedPart("categorical_column")

    categorical_column: CategoricalColumn
    classes_: list[np.ndarray | None]

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of the categorical column."""
        return self.categorical_column.feature_keys

    @property
    def _training_key(self) -> str:
        return f"__training_{self.name}__"

    def training_features(
        self,
        table: Table,
        sample_weight: np.ndarray | None,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return for each fold of the rows what is learned from the other folds."""
        table = table.with_target(table.target, sample_weight)
        rows = self._labelled(self.categorical, table, self.classes_)
        # Cross fitting, as of TargetEncoder.fit_transform: no row sees its own label.
        fold = self._order(rows.cells, generator) % _FOLDS
        result = np.empty((table.n_rows, self.size), np.float32)
        for number in range(_FOLDS):
            inside, others = fold == number, rows.take(fold != number)
            result[inside] = self._numbers_by_others(rows.cells[inside], others)
        return {self._training_key: result}

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        return {self.encoded_key: self._matrix(table)}

    def _matrix(self, table: Table) -> np.ndarray:
        if self._training_key in table:
            return table.numbers(self._training_key)
        return self._numbers(self._cells(self.categorical, table))

    def _learn(self, table: Table) -> dict[str, Any]:
        categorical = self.categorical_column.fitted(table, table.weight)
        classes = list(map(_classes_of, _arrays_of(table.target)))
        rows = self._labelled(categorical, table, classes)
        learned = self._learned_from(rows, categorical.num_buckets)
        return {"categorical_column_": categorical, "classes_": classes, **learned}

    def _labelled(
        self, categorical: CategoricalColumn, table: Table, classes: list[Any]
    ) -> Labelled:
        values = _numbers_of(table.target, classes, table.n_rows)
        return Labelled(self._cells(categorical, table), values, table.weight)

    @abstractmethod
    def _learned_from(self, rows: Labelled, n_ids: int) -> dict[str, Any]:
        """Return the attributes that are learned from rows with so many ids."""

    @abstractmethod
    def _cells(self, categorical: CategoricalColumn, table: Table) -> Any:
        """Return what the rows hold, an array or a sparse one."""

    def _order(self, cells: Any, generator: np.random.Generator) -> np.ndarray:
        """Return numbers of the rows, by which they are dealt out to the folds."""
        return generator.permutation(cells.shape[0])

    @abstractmethod
    def _numbers(self, cells: Any) -> np.ndarray:
        """Return what was learned from all rows, of shape (n_rows, size)."""

    @abstractmethod
    def _numbers_by_others(self, cells: Any, others: Labelled) -> np.ndarray:
        """Return what is learned from other rows, of shape (n_rows, size)."""


@dataclass(eq=False, repr=False)
class TargetStatisticsColumn(CrossFittedColumn):
    """Column made by `target_statistics_column`, where the parameters are documented.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    classes_ : list of (ndarray or None)
        For each array of labels the classes that have a mean, None for numbers.
    center_, scale_ : ndarray of shape (size,)
        Mean and standard deviation of the statistics before they were standardised.
    statistics_ : ndarray of float32, shape (num_buckets + 1, size)
        What stands for each id; the last row is for cells without id.
    """

    categorical_column: CategoricalColumn
    smooth: float | str = "auto"

    @property
    def name(self) -> str:
        """Name of the categorical column and ``_target_statistics``."""
        return f"{self.categorical_column.name}_target_statistics"

    @property
    def size(self) -> int:
        """Number of means, and one for the number of rows."""
        return self._fitted_statistics.shape[1]

    @property
    def _fitted_statistics(self) -> np.ndarray:
        statistics: np.ndarray = self._learned("statistics_", "leave the column out")
        return statistics

    def _validate(self) -> None:
        check_categorical(self.categorical_column, "a TargetStatisticsColumn")
        is_number = isinstance(self.smooth, Real) and self.smooth >= 0
        if self.smooth != "auto" and not is_number:
            raise ValueError(
                f"'smooth' of column {self.name!r} must be 'auto' or a number of 0 or "
                f"more; got {self.smooth!r}."
            )

    def _learned_from(self, rows: Labelled, n_ids: int) -> dict[str, Any]:
        # One more, for cells without an id: they, too, have labels.
        n_levels = n_ids + 1
        raw = self._statistics(rows, n_levels)
        # Standardised over the rows, not over the levels, of which most are rare.
        share = np.bincount(rows.cells, rows.weight, n_levels)
        share = share / (share.sum() or 1)
        center = share @ raw
        scale = np.sqrt(share @ (raw - center) ** 2)
        # Equal numbers, but for their rounding: not to be divided by.
        scale[scale <= _ROUNDING * np.abs(center)] = 1
        return {
            "center_": center,
            "scale_": scale,
            "statistics_": ((raw - center) / scale).astype(np.float32),
        }

    def _cells(self, categorical: CategoricalColumn, table: Table) -> np.ndarray:
        """Return the id of each row; the number of ids stands for none."""
        ids, _ = categorical.ids(table)
        # Of several categories in a cell, the mean of means would be no mean of labels.
        if ids.shape[1] != 1:
            raise ValueError(
                f"Column {self.name!r} takes one category in each cell; got "
                f"{ids.shape[1]}. Use a target_ridge_column or an embedding_column."
            )
        # -1 becomes the last row, which is that of cells without id.
        return ids[:, 0] % (categorical.num_buckets + 1)

    def _statistics(self, rows: Labelled, n_levels: int) -> np.ndarray:
        """Return means and log counts by level, of shape (n_levels, size)."""
        counts = np.bincount(rows.cells, rows.weight, n_levels)
        means = [
            _shrunken_means(rows._replace(values=column), n_levels, self.smooth)
            for column in rows.values.T
        ]
        # How sure the mean is, the network sees from the count; its logarithm, since
        # counts have a long tail.
        return np.column_stack([*means, np.log1p(counts)])

    def _numbers(self, cells: np.ndarray) -> np.ndarray:
        return self._fitted_statistics[cells]

    def _numbers_by_others(self, cells: np.ndarray, others: Labelled) -> np.ndarray:
        raw = self._statistics(others, len(self.statistics_))
        # As many rows as all folds have, for those that predictions meet have them.
        raw[:, -1] = np.log1p(np.expm1(raw[:, -1]) * (_FOLDS / (_FOLDS - 1)))
        # In the scale of all rows: the network meets predictions in no other.
        return ((raw - self.center_) / self.scale_)[cells]

    def _output_names(self) -> list[str]:
        stem = self.categorical_column.name
        means = [f"{stem}_target_mean_{i}" for i in range(self.size - 1)]
        return [*means, f"{stem}_log_count"]


def _arrays_of(target: Any) -> list[np.ndarray]:
    """Return labels as arrays: of several heads one each."""
    several = list(target.values()) if isinstance(target, Mapping) else [target]
    return [np.asarray(y) for y in several if y is not None]


def _classes_of(y: np.ndarray) -> np.ndarray | None:
    """Return the classes that have means, None of numbers; of what is neither, none."""
    if y.dtype.kind == "f" or (y.dtype.kind in "iub" and y.ndim == 2):
        return None
    if infer_dtype(y.ravel(), skipna=False) not in _CLASSES:  # lists of labels, say
        return np.empty(0)
    classes, counts = np.unique(y.ravel(), return_counts=True)
    if len(classes) == 2:
        # Of two classes, the share of one says that of the other.
        return classes[1:]
    # In sorted order, whichever are kept; of equally frequent ones the first.
    return classes[np.sort(np.argsort(-counts, kind="stable")[:_MOST_CLASSES])]


def _numbers_of(
    target: Any, classes: list[np.ndarray | None], n_rows: int
) -> np.ndarray:
    """Return numbers whose means are wanted, of shape (n_rows, n_outputs)."""
    blocks = [np.empty((n_rows, 0))]
    for y, known in zip(_arrays_of(target), classes, strict=True):
        if known is None:
            blocks.append(y.reshape(n_rows, -1).astype(np.float64))
        elif len(known):
            blocks.append((y.reshape(n_rows, 1) == known).astype(np.float64))
    return np.hstack(blocks)


def _shrunken_means(rows: Labelled, n_levels: int, smooth: float | str) -> np.ndarray:
    """Return the mean of each level, shrunk towards that of all; NaN counts nowhere.

    With "auto" by Micci-Barreca's formula (ACM SIGKDD Explorations 3, 2001).
    """
    levels, values, own_weight = rows
    known = ~np.isnan(values)
    weight = known.astype(np.float64)
    if own_weight is not None:
        weight *= own_weight
    total = weight.sum()
    # The others of a fold may lack all labels of one of several outputs.
    if total == 0:
        return np.zeros(n_levels)
    values = np.where(known, values, 0)
    mean = weight @ values / total
    # Around the mean, since squares of large numbers would lose their digits.
    values = values - mean
    counts = np.bincount(levels, weight, n_levels)
    sums = np.bincount(levels, weight * values, n_levels)
    # A level without rows differs from the mean of all by nothing.
    own = sums / np.where(counts > 0, counts, 1)
    if smooth == "auto":
        # As sklearn.preprocessing.TargetEncoder: what two variances say of the mean.
        within = np.bincount(levels, weight * (values - own[levels]) ** 2, n_levels)
        between = (weight @ values**2 / total) * counts
        noise = within / np.where(counts > 0, counts, 1)
    else:
        between, noise = counts, np.full(n_levels, float(smooth))
    trust = between / np.where(between > 0, between + noise, 1)
    return mean + trust * own
