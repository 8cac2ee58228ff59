# SPDX-License-Identifier: Apache-2.0
"""`infer_feature_columns`: feature columns for an X of which nothing is said.

Also what estimators add to them: piecewise-linear columns, and what dates need.
"""

from typing import Any, Literal, overload

from sklearn.base import clone

from skest.core.checks import check_choice
from skest.feature_columns.bucketized import bucketized_column
from skest.feature_columns.choice import chosen_columns
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.joined import JoinedNumericColumn
from skest.feature_columns.matrix_parts import NumericPartColumn
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_vectors import piecewise_linear_column
from skest.feature_columns.parsed import ParsedColumn
from skest.feature_columns.table import Table

#: Edges of the piecewise-linear columns beside numbers; so many find the spikes that
#: trees find.
PIECEWISE_BOUNDARIES = "distinct:128"
#: Numbers that a network makes of each, and at most of all of them.
PIECEWISE_DIMENSION = 8
MAX_PIECEWISE_WIDTH = 512

#: A weight adds the variance of the noise, divided by so many rows, to the squared error.
ROWS_OF_WEIGHT = 50
# Between the values of parts of dates; the last bucket is left for gaps.
_BOUNDARIES = {"month": range(2, 14), "weekday": range(1, 8), "hour": range(1, 25)}
_KINDS = ("dense", "linear", "sequence", "context")


@overload
def infer_feature_columns(
    X: Any,
    kind: Literal["dense", "linear", "sequence"] = "dense",
    dtype: str | None = None,
) -> FeatureColumns: ...


@overload
def infer_feature_columns(
    X: Any, kind: str, dtype: str | None = None
) -> FeatureColumns | None: ...


def infer_feature_columns(
    X: Any, kind: str = "dense", dtype: str | None = None
) -> FeatureColumns | None:
    """Choose feature columns for X.

    ============================================ ========================================
    Cells                                        Columns
    ============================================ ========================================
    numbers                                      scaled by ``normalizer="auto"``; gaps,
                                                 also "n/a" and the like, become the
                                                 mean, with an indicator of missing ones
    whole numbers that name things, in ``fit``   as numbers and as categories, too
    strings that all are numbers or missing      as numbers, unless one has a leading zero;
                                                 if they are whole and come again, which
                                                 codes do, as categories, too, but not
                                                 where "?" and the like stand for gaps
    dates, also as strings in ISO form           seconds, weekday and hour where they vary,
                                                 month and day of the year where all months
                                                 are there, as numbers
    strings, booleans, intervals, categories:
    - texts: at least half of the cells differ,  bag of hashed words: one vector, the mean;
      and have more than 4 words; or for a deep  beside it `target_ridge_column`
      model 2, of which most are in 5 cells,
      but few of the levels
    - other levels, unique in 20 cells and more  none, with a warning
    - up to 10 levels                            indicator
    - up to 50,000 levels                        embedding, with a trained vector for rare
                                                 and unknown levels and one for missing
                                                 ones; beside it `target_statistics_column`
    - more                                       the same of 100,000 hash buckets
    lists of strings or integers                 several categories: an indicator, or an
                                                 embedding beside `target_ridge_column`
    lists of floats of one length                numbers
    integers that number the rows, but not       none, with a warning
      days, weeks etc., as the name says; others
      in each row of a column called "id"; no
      value; the same number or date in each row
    columns of a matrix, dense or sparse, side
    by side, of which at most one is on in
    each row:
    - up to 10                                   numbers
    - more                                       the category that was one-hot encoded
    sparse matrix that is no encoded table       numbers scaled to [-1, 1] times a vector
                                                 for each column, from 64 columns on beside
                                                 `target_ridge_column`; never made dense
    ============================================ ========================================

    An array of numbers becomes one column, besides categories that were one-hot encoded,
    and flags if it has more than 64 columns. So do, in an estimator, the numbers of a
    frame, and its indicators or the categories of its linear model. For a linear model,
    numbers are standardised, matrices stay as they are, and categories have neither
    vectors nor statistics.
    A category that is the integer -1 counts as missing, with a warning.

    Whole numbers name things, such as shops, if labels of an estimator's ``fit`` say so:
    if what rows of a level have says more of its other rows than what levels beside it
    have (1,000 rows, 30 levels and 2 rows of each are needed). A tenth of the rows train
    what the number tells of levels that are new. Without labels, or if they do not, a
    column whose name ends as those of ids and codes do ("store_id", "zipcode") is of
    numbers, with a warning.

    Parameters
    ----------
    X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
        Training data; see `skest.feature_columns.table.Table`.
    kind : {"dense", "linear", "sequence", "context"}, default="dense"
        "dense": columns for a deep model, where categories become an indicator (few
        levels) or an embedding. "linear": for a linear model, which takes categorical
        columns as they are. "sequence": for a model of sequences, only of what has
        several values in a cell, lists or arrays of two or more dimensions; there, lists
        of integers are numbers. "context": of all the rest, as "dense".
    dtype : {"float32", "float64"} or None, default=None
        Type in which numbers are scaled. None takes float32 for columns whose type it
        can hold exactly (up to float32 and int16), and float64 for others.

    Returns
    -------
    FeatureColumns or None
        Not fitted. None if there are no columns for the context.

    Raises
    ------
    ValueError
        If X has a column that is neither numbers nor categories, such as durations, if
        no column is left, or no sequences are found.
    TypeError
        If X has a sparse matrix, and sequences are wanted.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.feature_columns import infer_feature_columns
    >>> X = pd.DataFrame({"size": [1.0, None], "color": ["red", "blue"]})
    >>> [column.name for column in infer_feature_columns(X).active]
    ['size', 'color_indicator']
    """
    check_choice(kind, "kind", "infer_feature_columns", _KINDS)
    table = Table(X)
    keys = table.keys
    # One column for all numbers of an array: a hundred columns would take a hundred
    # times as long.
    if table.whole_key is not None and all(map(table.holds_numbers, keys)):
        keys = [table.whole_key]
    keys, columns = chosen_columns(table, keys, kind, dtype)
    if columns:
        return FeatureColumns(columns)
    if keys:
        raise ValueError(
            f"No column of X tells anything: {', '.join(map(repr, keys))}. Describe what "
            "is to be used by feature columns."
        )
    if kind == "sequence":
        raise ValueError(
            "X has no column of sequences: no cells are lists, and no column is an array "
            "of two dimensions. Gather the values of a sequence into one cell, or use a "
            "model without sequences, such as DNNClassifier."
        )
    return None


def with_piecewise(columns: FeatureColumns) -> FeatureColumns:
    """Return inferred columns, and such that let a deep model see thresholds of numbers.

    A piecewise-linear column of `PIECEWISE_DIMENSION` numbers comes beside each column of
    numbers and each part of a date, of fewer where there are many, and of none where there
    are very many.
    """
    kinds = (NumericColumn, NumericPartColumn, JoinedNumericColumn, ParsedColumn)
    # Not of their subclasses: a sequence has steps, and no fixed number of elements.
    numbers = [column for column in columns.columns if type(column) in kinds]
    n_elements = sum(column.n_elements for column in numbers)
    # Of a thousand numbers, the layer behind them would be larger than all others.
    dimension = min(PIECEWISE_DIMENSION, MAX_PIECEWISE_WIDTH // max(n_elements, 1))
    if not dimension:
        return columns
    piecewise = [
        piecewise_linear_column(
            # Neither scaled nor filled: edges follow any scale, and a gap is to give
            # zeros, not what the mean gives.
            clone(column).set_params(
                default_value=None, normalizer=None, indicate_missing=False
            ),
            PIECEWISE_BOUNDARIES,
            dimension,
        )
        for column in numbers
    ]
    return FeatureColumns([*columns.columns, *piecewise])


def with_weights_of_dates(columns: FeatureColumns, n_rows: int) -> FeatureColumns:
    """Return inferred columns where months, weekdays and hours have weights of their own.

    For a linear model with `ROWS_OF_WEIGHT` rows for each: no line goes through the days of
    a week. In a wide part, beside a network that sees them, they raise the loss (Chicago,
    three splits: by 2 to 7 %).
    """

    def in_buckets(column: Any) -> Any:
        boundaries = _BOUNDARIES.get(getattr(column, "parse", ""))
        if boundaries is None or n_rows < ROWS_OF_WEIGHT * len(boundaries):
            return column
        source = clone(column).set_params(default_value=None, normalizer=None)
        return bucketized_column(source, boundaries)

    return FeatureColumns([in_buckets(column) for column in columns.columns])


def with_limits_of_dates(columns: FeatureColumns) -> FeatureColumns:
    """Return inferred columns of a wide part, where dates go on as in a deep one.

    Its answer for a year ahead would be far beyond all others.
    """
    return FeatureColumns(
        [
            clone(column).set_params(normalizer="auto")
            if getattr(column, "parse", "") == "seconds"
            else column
            for column in columns.columns
        ]
    )
