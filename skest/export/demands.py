# SPDX-License-Identifier: Apache-2.0
"""What feature columns want of the inputs of an exported graph."""

from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from skest.exceptions import ExportError
from skest.feature_columns.base import FeatureColumn
from skest.feature_columns.bucketized import BucketizedColumn
from skest.feature_columns.categorical import (
    HashBucketColumn,
    IdentityColumn,
    KeyedCategoricalColumn,
)
from skest.feature_columns.crossed import CrossedColumn
from skest.feature_columns.dense import EmbeddingColumn, IndicatorColumn
from skest.feature_columns.nested import OverCategorical
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_frame import NumericFrameColumn
from skest.feature_columns.parsed import ParsedColumn
from skest.feature_columns.periodic import PeriodicColumn
from skest.feature_columns.piecewise import PiecewiseLinearColumn
from skest.feature_columns.sequence import (
    SequenceCategoricalColumn,
    SequenceNumericColumn,
)
from skest.feature_columns.shared import SharedEmbeddingColumn
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.table import Key
from skest.feature_columns.target_statistics import TargetStatisticsColumn
from skest.feature_columns.vocabulary import VocabularyColumn, VocabularyListColumn
from skest.feature_columns.vocabulary_file import VocabularyFileColumn
from skest.feature_columns.weighted import WeightedCategoricalColumn

__all__ = ["Demand", "demands"]

_KNOWN = (
    BucketizedColumn,
    CrossedColumn,
    EmbeddingColumn,
    HashBucketColumn,
    IdentityColumn,
    IndicatorColumn,
    NumericColumn,
    NumericFrameColumn,
    ParsedColumn,
    PeriodicColumn,
    PiecewiseLinearColumn,
    SequenceCategoricalColumn,
    SequenceNumericColumn,
    SharedEmbeddingColumn,
    SparseMatrixColumn,
    TargetStatisticsColumn,
    VocabularyFileColumn,
    VocabularyListColumn,
    WeightedCategoricalColumn,
)


class Demand(NamedTuple):
    """How a column reads a raw column.

    Attributes
    ----------
    key : str or int
        Key of the raw column.
    is_number : bool
        As numbers, or as categories.
    dtype : str or None
        Type of the numbers, None that of the network; or "string" or "int64" of the
        categories, None either.
    shape : tuple of int or None
        Of the input; None is open.
    may_miss : bool
        Whether a number may be missing.
    delimiter : str or None
        What divides the values in a cell.
    is_crossed : bool
        Whether the integer -1 is a category, because a crossed column reads it by name.
    names : tuple of str or None
        Columns of a frame that are the columns of the input.
    is_weight : bool
        Whether the numbers are weights of what else the column reads.
    """

    key: Key
    is_number: bool
    dtype: str | None
    shape: tuple[int | None, ...] = (None, 1)
    may_miss: bool = True
    delimiter: str | None = None
    is_crossed: bool = False
    names: tuple[str, ...] | None = None
    is_weight: bool = False


def demands(column: FeatureColumn) -> list[Demand]:
    """Return what a fitted column wants.

    Raises
    ------
    ExportError
        If the column is of a class that is not known, such as one of the user's.
    """
    if type(column) not in _KNOWN:
        raise ExportError(
            f"The feature column {column.name!r} is a {type(column).__name__}, which "
            "cannot be exported. Use a column made by a function of "
            "skest.feature_columns."
        )
    return _demands(column)


@singledispatch
def _demands(column: Any) -> list[Demand]:
    raise NotImplementedError


@_demands.register
def _(column: NumericColumn) -> list[Demand]:
    dtype, shape = np.dtype(column.dtype).name, (None, *column.cell_shape)
    return [Demand(column.key, True, dtype, shape, column.default_value is not None)]


@_demands.register
def _(column: NumericFrameColumn) -> list[Demand]:
    (demand,) = _demands.dispatch(NumericColumn)(column)
    return [demand._replace(names=tuple(column.feature_names))]


@_demands.register
def _(column: ParsedColumn) -> list[Demand]:
    if column.parse != "number":
        raise ExportError(
            f"The column {column.name!r} reads dates, which an exported graph cannot. "
            "Make numbers of them before fit, such as "
            "X['when'].astype('datetime64[s]').astype('int64'), and export again."
        )
    return _demands.dispatch(NumericColumn)(column)


@_demands.register
def _(column: SequenceNumericColumn) -> list[Demand]:
    inside = () if column.cell_shape == (1,) else column.cell_shape
    dtype = np.dtype(column.dtype).name
    return [Demand(column.key, True, dtype, (None, None, *inside))]


@_demands.register
def _(column: SparseMatrixColumn) -> list[Demand]:
    return [Demand(column.key, True, None, (None, column.num_buckets), False)]


@_demands.register
def _(column: BucketizedColumn) -> list[Demand]:
    return _that_may_miss(column.source)


@_demands.register
def _(column: PiecewiseLinearColumn) -> list[Demand]:
    return _that_may_miss(column.source)


@_demands.register
def _(column: PeriodicColumn) -> list[Demand]:
    return demands(column.source)


def _that_may_miss(source: NumericColumn) -> list[Demand]:
    return [demand._replace(may_miss=True) for demand in demands(source)]


@_demands.register
def _(column: KeyedCategoricalColumn) -> list[Demand]:
    return [Demand(column.key, False, _kind(column), delimiter=column.delimiter)]


def _kind(column: KeyedCategoricalColumn) -> str | None:
    """Return the type of the categories, None for either."""
    if isinstance(column, IdentityColumn):
        return "int64"
    if isinstance(column, VocabularyColumn):
        return column.kind
    return "string" if column.delimiter is not None else getattr(column, "dtype", None)


@_demands.register
def _(column: CrossedColumn) -> list[Demand]:
    found: list[Demand] = []
    for key in column.hashed_keys:
        if isinstance(key, FeatureColumn):
            found += demands(key)
        else:
            found.append(Demand(key, False, None, is_crossed=True))
    return found


@_demands.register
def _(column: OverCategorical | TargetStatisticsColumn) -> list[Demand]:
    return demands(column.categorical)


@_demands.register
def _(column: SequenceCategoricalColumn) -> list[Demand]:
    return [d._replace(shape=(None, None)) for d in demands(column.categorical)]


@_demands.register
def _(column: WeightedCategoricalColumn) -> list[Demand]:
    dtype = np.promote_types(column.dtype, np.float32).name  # for NaN behind the values
    shape = (None, None)
    weights = Demand(column.weight_feature_key, True, dtype, shape, is_weight=True)
    return [*demands(column.categorical), weights]
