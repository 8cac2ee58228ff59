# SPDX-License-Identifier: Apache-2.0
"""`target_statistics_column`, `target_ridge_column`: what labels say of categories."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype
from scipy.sparse import csr_array

from skest.core.checks import check_positive
from skest.feature_columns.base import (
    CategoricalColumn,
    DenseColumn,
    check_categorical,
)
from skest.feature_columns.statistics import mean_and_scale
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
    Predictions after `partial_fit` take the means of `fit`, or of its first call. So do
    its rows, without the fold that they are of by their cells: some may come again.

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


# Coefficients and intercepts.
_Ridge: TypeAlias = tuple[np.ndarray, np.ndarray]


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
    fold : ndarray of shape (n_rows,)
        Which of the folds a row is of: by its cells, whenever it comes, or drawn.
    """

    cells: Any
    values: np.ndarray
    weight: np.ndarray | None
    fold: np.ndarray

    def take(self, rows: np.ndarray) -> "Labelled":
        """Return some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Labelled(self.cells[rows], self.values[rows], weight, self.fold[rows])


class CrossFittedColumn(DenseColumn):
    """Numbers that labels say of categories, in training those of other rows' labels."""

    categorical_column: CategoricalColumn
    classes_: list[np.ndarray | None]

    @property
    def categorical(self) -> CategoricalColumn:
        """The categorical column, fitted if this one is."""
        return vars(self).get("categorical_column_", self.categorical_column)

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
        """Return for each row what is learned from the folds that it is not of.

        With labels anew, in folds that are drawn; without, what `fit` has learned.
        """
        # Cross fitting, as of TargetEncoder.fit_transform: no row sees its own label.
        if table.target is None:
            cells = self._cells(self.categorical, table)
            numbers = self._numbers_by_others(cells, self._fold(cells, table))
        else:
            table = table.with_target(table.target, sample_weight)
            rows = self._labelled(self.categorical, table, self.classes_, generator)
            numbers = self._cross_fitted(rows)
        return {self._training_key: numbers}

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
        self,
        categorical: CategoricalColumn,
        table: Table,
        classes: list[Any],
        generator: np.random.Generator | None = None,
    ) -> Labelled:
        """Return rows with their labels; a generator draws their folds."""
        values = _numbers_of(table.target, classes, table.n_rows)
        weight = table.weight
        if weight is not None:
            # Small ones, such as shares, count as rows on average: means of levels would
            # shrink to nothing.
            mean = weight.sum() / np.count_nonzero(weight)
            weight = weight / mean if 0 < mean < 1 else weight
        cells = self._cells(categorical, table)
        if generator is None:
            fold = self._fold(cells, table)
        else:
            fold = self._drawn_fold(cells, generator)
        return Labelled(cells, values, weight, fold)

    @abstractmethod
    def _learned_from(self, rows: Labelled, n_ids: int) -> dict[str, Any]:
        """Return the attributes that are learned from rows with so many ids."""

    @abstractmethod
    def _cells(self, categorical: CategoricalColumn, table: Table) -> Any:
        """Return what the rows hold, an array or a sparse one."""

    @abstractmethod
    def _fold(self, cells: Any, table: Table) -> np.ndarray:
        """Return which fold each row is of; when it comes again, it is of the same."""

    @abstractmethod
    def _drawn_fold(self, cells: Any, generator: np.random.Generator) -> np.ndarray:
        """Return a fold for each row, another one in each call."""

    @abstractmethod
    def _numbers(self, cells: Any) -> np.ndarray:
        """Return what was learned from all rows, of shape (n_rows, size)."""

    @abstractmethod
    def _numbers_by_others(self, cells: Any, fold: np.ndarray) -> np.ndarray:
        """Return what was learned from other folds, of shape (n_rows, size)."""

    @abstractmethod
    def _cross_fitted(self, rows: Labelled) -> np.ndarray:
        """Return what the rows of other folds say now, of shape (n_rows, size)."""


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
    statistics_of_others_ : ndarray of float32, shape (5, num_buckets + 1, size)
        The same without the rows of each fold, for rows of it that come again.
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

    def training_features(
        self,
        table: Table,
        sample_weight: np.ndarray | None,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return what other rows have taught; some are as if of no known level."""
        features = super().training_features(table, sample_weight, generator)
        hidden = self.categorical._hidden_rows(table.n_rows)
        features[self._training_key][hidden] = self._fitted_statistics[-1]
        return features

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
        by_others = self._statistics_of_others(rows, n_levels)
        return {
            "center_": center,
            "scale_": scale,
            "statistics_": ((raw - center) / scale).astype(np.float32),
            "statistics_of_others_": ((by_others - center) / scale).astype(np.float32),
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

    def _numbers_by_others(self, cells: np.ndarray, fold: np.ndarray) -> np.ndarray:
        return self.statistics_of_others_[fold, cells]

    def _cross_fitted(self, rows: Labelled) -> np.ndarray:
        by_others = self._statistics_of_others(rows, len(self.statistics_))
        # In the scale of all rows: the network meets predictions in no other.
        by_others = (by_others - self.center_) / self.scale_
        return by_others[rows.fold, rows.cells].astype(np.float32)

    def _statistics_of_others(self, rows: Labelled, n_levels: int) -> np.ndarray:
        """Return the statistics without each fold, of shape (5, n_levels, size)."""
        found = np.stack(
            [
                self._statistics(rows.take(rows.fold != n), n_levels)
                for n in range(_FOLDS)
            ]
        )
        # As many rows as all folds have, for those that predictions meet have them.
        found[..., -1] = np.log1p(np.expm1(found[..., -1]) * (_FOLDS / (_FOLDS - 1)))
        return found

    def _fold(self, cells: np.ndarray, table: Table) -> np.ndarray:
        return table.learned("folds", partial(_fold_of_rows, table))

    def _drawn_fold(
        self, cells: np.ndarray, generator: np.random.Generator
    ) -> np.ndarray:
        return generator.permutation(len(cells)) % _FOLDS

    def _output_names(self) -> list[str]:
        stem = self.categorical_column.name
        means = [f"{stem}_target_mean_{i}" for i in range(self.size - 1)]
        return [*means, f"{stem}_log_count"]


def _fold_of_rows(table: Table) -> np.ndarray:
    hashes = table.row_hashes()
    # Of a table of one column, the rows with a level are equal, and not of one fold.
    repeated = pd.Series(hashes).groupby(hashes).cumcount().to_numpy(np.uint64)
    return (pd.util.hash_array(hashes + repeated) % _FOLDS).astype(np.intp)


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


def label_numbers(target: Any, n_rows: int) -> np.ndarray:
    """Return labels as numbers of shape (n_rows, n_outputs), classes as their shares."""
    return _numbers_of(target, list(map(_classes_of, _arrays_of(target))), n_rows)


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
    levels, values, own_weight, _ = rows
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


def target_ridge_column(
    categorical_column: CategoricalColumn, alpha: float = 1.0
) -> "TargetRidgeColumn":
    r"""Replace the categories of a cell by what a linear model makes of them.

    For words of texts and other cells of several categories, beside an embedding: of some
    thousand texts a network learns little, and learns that slowly. Ridge regression of
    the standardised labels on the categories, the rare ones weighted up (tf-idf), gives a
    number for each label, as in `target_statistics_column`: a target that is a number has
    one, two classes have one, more have one each, of the 32 most frequent; several
    outputs have their own. Behind them is the logarithm of one plus the number of
    categories in the cell.

    An estimator of skest trains on what was learned without the row, in 5 folds that have
    equal cells together, by way of `FeatureColumns.training_features`; predictions take
    what all training rows say, as does `transform`.

    Parameters
    ----------
    categorical_column : CategoricalColumn
        Any. Categories without an id count nowhere, others by their weight if they
        have one, as in `weighted_categorical_column` and in a sparse matrix.
    alpha : float, default=1.0
        Strength of the L2 penalty, as in `sklearn.linear_model.Ridge`. The vector of a
        cell has length one.

    Returns
    -------
    TargetRidgeColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    Weights are those of `sklearn.feature_extraction.text.TfidfTransformer`, but that a
    word which is said twice makes the vector longer by 2 ** 0.5, and not by 2. A
    weight of 2 counts like two equal rows. Labels are read as in
    `target_statistics_column`.

    Examples
    --------
    >>> from skest.feature_columns import (
    ...     categorical_column_with_hash_bucket,
    ...     target_ridge_column,
    ... )
    >>> words = categorical_column_with_hash_bucket("said", 1000, delimiter=r"\w+")
    >>> X = {"said": ["Very good!", "Good.", "Bad...", "Very, very bad"]}
    >>> column = target_ridge_column(words).fit(X, [1.0, 1.0, 0.0, 0.0])
    >>> column.encode({"said": ["good", "so bad"]})[column.name].round(decimals=1)
    array([[ 0.7, -0.9],
           [-0.3,  0.4]], dtype=float32)
    """
    return TargetRidgeColumn(categorical_column, alpha).validated()


@dataclass(eq=False, repr=False)
class TargetRidgeColumn(CrossFittedColumn):
    """Column made by `target_ridge_column`, where the parameters are documented.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    classes_ : list of (ndarray or None)
        For each array of labels the classes that have a number, None for numbers.
    count_center_, count_scale_ : float
        Mean and standard deviation of the logarithms.
    rarity_ : ndarray of float32, shape (num_buckets,)
        Weight of each category.
    coefficients_ : ndarray of float32, shape (num_buckets, size - 1)
        Those of the weighted categories.
    intercept_ : ndarray of float32, shape (size - 1,)
        What a cell without a category has.
    coefficients_of_others_, intercept_of_others_ : ndarray of float32
        The same without the rows of each fold, of shapes (5, ...).
    """

    categorical_column: CategoricalColumn
    alpha: float = 1.0

    @property
    def name(self) -> str:
        """Name of the categorical column and ``_target_ridge``."""
        return f"{self.categorical_column.name}_target_ridge"

    @property
    def size(self) -> int:
        """Number of labels' numbers, and one for the number of categories."""
        return 1 + len(self._learned("intercept_", "leave the column out"))

    def _validate(self) -> None:
        check_categorical(self.categorical_column, "a TargetRidgeColumn")
        check_positive(self.alpha, "alpha", f"column {self.name!r}")

    def _learned_from(self, rows: Labelled, n_ids: int) -> dict[str, Any]:
        weight = np.ones(len(rows.values)) if rows.weight is None else rows.weight
        rarity = _rarity(rows.cells, weight)
        coefficients, intercept = self._ridge(rows, rarity)
        of_others = self._ridges_of_others(rows, rarity)
        counts = _log_counts(rows.cells)[:, np.newaxis]
        center, scale = mean_and_scale(counts, None, rows.weight)
        return {
            "count_center_": float(center[0]),
            "count_scale_": float(scale[0]),
            "rarity_": rarity.astype(np.float32),
            "coefficients_": coefficients,
            "intercept_": intercept,
            "coefficients_of_others_": np.stack([c for c, _ in of_others]),
            "intercept_of_others_": np.stack([i for _, i in of_others]),
        }

    def _cells(self, categorical: CategoricalColumn, table: Table) -> csr_array:
        """Return what is in the cells, of shape (n_rows, num_buckets)."""
        encoded = categorical._encoded(table)
        ids = encoded[categorical.encoded_key]
        key = categorical.weight_key
        weights = np.ones(ids.shape) if key is None else encoded[key]
        is_there = ids >= 0
        ends = np.concatenate([[0], is_there.sum(axis=1).cumsum()])
        # What is twice in a cell stays twice, as in an exported graph.
        parts = (weights[is_there], ids[is_there], ends)
        return csr_array(parts, shape=(len(ids), categorical.num_buckets))

    def _ridges_of_others(self, rows: Labelled, rarity: np.ndarray) -> list[_Ridge]:
        return [self._ridge(rows.take(rows.fold != n), rarity) for n in range(_FOLDS)]

    def _ridge(self, rows: Labelled, rarity: np.ndarray) -> _Ridge:
        """Return the coefficients and the intercepts."""
        from sklearn.linear_model import Ridge  # fits without texts need none

        cells, values, weight, _ = rows
        n_rows, n_buckets = cells.shape
        weight = np.ones(n_rows) if weight is None else weight
        vectors = _vectors(cells, rarity)
        coefficients = np.zeros((n_buckets, values.shape[1]), np.float32)
        intercept = np.zeros(values.shape[1], np.float32)
        for i in range(values.shape[1]):
            # Of several targets, a row may lack some.
            known = ~np.isnan(values[:, i])
            own, own_weight = values[known, i : i + 1], weight[known]
            # A fold may lack all labels of a target, which is the mean then.
            if not own_weight.any():
                continue
            mean, scale = mean_and_scale(own, None, own_weight)
            # The penalty is to mean the same for prices as for shares: labels are
            # standardised.
            ridge = Ridge(alpha=self.alpha)
            ridge.fit(vectors[known], ((own - mean) / scale).ravel(), own_weight)
            coefficients[:, i], intercept[i] = ridge.coef_, ridge.intercept_
        return coefficients, intercept

    def _fold(self, cells: csr_array, table: Table) -> np.ndarray:
        return self._drawn_fold(cells, np.random.default_rng(0))

    def _drawn_fold(
        self, cells: csr_array, generator: np.random.Generator
    ) -> np.ndarray:
        # Equal cells go into one fold: a text that comes again does not tell the label of
        # the other, and a weight of 2 is two equal rows. Sums of whole numbers are exact.
        whole = generator.integers(2**32, size=cells.shape[1])
        return (cells @ whole.astype(np.float64)).astype(np.int64) % _FOLDS

    def _numbers(self, cells: csr_array) -> np.ndarray:
        return self._scores(cells, self.coefficients_, self.intercept_)

    def _numbers_by_others(self, cells: csr_array, fold: np.ndarray) -> np.ndarray:
        ridges = zip(
            self.coefficients_of_others_, self.intercept_of_others_, strict=True
        )
        return self._scores_by_fold(cells, fold, ridges)

    def _cross_fitted(self, rows: Labelled) -> np.ndarray:
        ridges = self._ridges_of_others(rows, self.rarity_)
        return self._scores_by_fold(rows.cells, rows.fold, ridges)

    def _scores_by_fold(
        self, cells: csr_array, fold: np.ndarray, ridges: Iterable[_Ridge]
    ) -> np.ndarray:
        found = np.empty((cells.shape[0], self.size), np.float32)
        for number, ridge in enumerate(ridges):
            found[fold == number] = self._scores(cells[fold == number], *ridge)
        return found

    def _scores(
        self, cells: csr_array, coefficients: np.ndarray, intercept: np.ndarray
    ) -> np.ndarray:
        scores = _vectors(cells, self.rarity_) @ coefficients + intercept
        counts = (_log_counts(cells) - self.count_center_) / self.count_scale_
        return np.column_stack([scores, counts]).astype(np.float32)

    def _output_names(self) -> list[str]:
        stem = self.categorical_column.name
        scores = [f"{stem}_target_ridge_{i}" for i in range(self.size - 1)]
        return [*scores, f"{stem}_log_count"]


def _rarity(cells: csr_array, weight: np.ndarray) -> np.ndarray:
    """Return the inverse document frequencies of `TfidfTransformer`."""
    # A word counts once for a text, however often it is said there.
    is_there = cells.copy()
    is_there.data[:] = 1
    is_there.sum_duplicates()
    is_there.data[:] = 1
    return np.log((1 + weight.sum()) / (1 + weight @ is_there)) + 1


def _vectors(cells: csr_array, rarity: np.ndarray) -> csr_array:
    """Return cells as vectors of length one, or zero without any category."""
    rows = _rows_of(cells)
    weights = cells.data * rarity[cells.indices]
    lengths = np.sqrt(np.bincount(rows, weights**2, cells.shape[0]))
    lengths[lengths == 0] = 1
    parts = (weights / lengths[rows], cells.indices, cells.indptr)
    return csr_array(parts, shape=cells.shape)


def _log_counts(cells: csr_array) -> np.ndarray:
    # A weight of zero is a word that is not there.
    n_categories = np.bincount(_rows_of(cells), cells.data != 0, cells.shape[0])
    return np.log1p(n_categories)


def _rows_of(cells: csr_array) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(cells.shape[0]), np.diff(cells.indptr))
