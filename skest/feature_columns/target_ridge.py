# SPDX-License-Identifier: Apache-2.0
"""`target_ridge_column`: what the words of a text say of its label, as numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from skest.core.checks import check_positive
from skest.feature_columns.base import CategoricalColumn, check_categorical
from skest.feature_columns.statistics import mean_and_scale
from skest.feature_columns.table import Table
from skest.feature_columns.target_statistics import CrossFittedColumn, Labelled


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
        rarity, coefficients, intercept = self._ridge(rows)
        counts = _log_counts(rows.cells)[:, np.newaxis]
        center, scale = mean_and_scale(counts, None, rows.weight)
        return {
            "count_center_": float(center[0]),
            "count_scale_": float(scale[0]),
            "rarity_": rarity.astype(np.float32),
            "coefficients_": coefficients.astype(np.float32),
            "intercept_": intercept.astype(np.float32),
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

    def _ridge(self, rows: Labelled) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rarity of categories, the coefficients and the intercepts."""
        from sklearn.linear_model import Ridge  # fits without texts need none

        cells, values, weight = rows
        n_rows, n_buckets = cells.shape
        weight = np.ones(n_rows) if weight is None else weight
        rarity = _rarity(cells, weight)
        vectors = _vectors(cells, rarity)
        coefficients = np.zeros((n_buckets, values.shape[1]))
        intercept = np.zeros(values.shape[1])
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
        return rarity, coefficients, intercept

    def _order(self, cells: csr_array, generator: np.random.Generator) -> np.ndarray:
        # Equal cells go into one fold: a text that comes again does not tell the label of
        # the other, and a weight of 2 is two equal rows.
        by_content = cells @ generator.random(cells.shape[1])
        return np.unique(by_content, return_inverse=True)[1]

    def _numbers(self, cells: csr_array) -> np.ndarray:
        return self._scores(cells, self.rarity_, self.coefficients_, self.intercept_)

    def _numbers_by_others(self, cells: csr_array, others: Labelled) -> np.ndarray:
        return self._scores(cells, *self._ridge(others))

    def _scores(self, cells: csr_array, *ridge: np.ndarray) -> np.ndarray:
        rarity, coefficients, intercept = ridge
        scores = _vectors(cells, rarity) @ coefficients + intercept
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
