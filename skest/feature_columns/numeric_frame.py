# SPDX-License-Identifier: Apache-2.0
"""A frame of numbers as one numeric column, which also reads it as an array."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.piecewise import PiecewiseLinearColumn
from skest.feature_columns.table import Key, Table

__all__ = ["NumericFrameColumn", "with_feature_names"]


class NumericFrameColumn(NumericColumn):
    """All columns of a frame of numbers as one numeric column.

    An estimator without given columns reads such a frame as one array. This column of
    its fitted feature columns takes both: the array under `key`, and the frame, whose
    columns it finds by their names.

    Parameters
    ----------
    key, shape, default_value, dtype, normalizer, indicate_missing
        As of `numeric_column`; `key` is that of the array.
    feature_names : sequence of str
        Names of the columns of the frame, one for each element of `shape`.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.feature_columns.numeric_frame import NumericFrameColumn
    >>> column = NumericFrameColumn("x", 2, feature_names=["age", "size"])
    >>> column.transform(pd.DataFrame({"size": [1.0], "age": [50.0]}))
    array([[50.,  1.]], dtype=float32)
    >>> column.get_feature_names_out()
    array(['age', 'size'], dtype=object)
    """

    def __init__(
        self,
        key: Key,
        shape: int | tuple[int, ...] = (1,),
        default_value: float | str | None = None,
        dtype: Any = "float32",
        normalizer: str | Callable[[np.ndarray], np.ndarray] | None = None,
        indicate_missing: bool | str = False,
        *,
        feature_names: Sequence[str],
    ) -> None:
        super().__init__(key, shape, default_value, dtype, normalizer, indicate_missing)
        self.feature_names = feature_names

    @property
    def _element_names(self) -> list[str]:
        return [str(name) for name in self.feature_names]

    def _raw(self, table: Table) -> np.ndarray:
        is_array = table.feature_names is None
        if is_array and not set(self.feature_names).issubset(table.keys):
            return super()._raw(table)
        return np.column_stack([table.numbers(name) for name in self.feature_names])


def with_feature_names(
    columns: FeatureColumns, feature_names: Sequence[str]
) -> FeatureColumns:
    """Return inferred columns of an array that read the frame it was made of, too.

    Parameters
    ----------
    columns : FeatureColumns
        Not fitted; each numeric column among them reads the array as a whole.
    feature_names : sequence of str
        Names of the columns of the frame.
    """

    def named(column: Any) -> Any:
        if isinstance(column, PiecewiseLinearColumn):
            params = column.get_params(deep=False)
            return PiecewiseLinearColumn(
                **{**params, "source_column": named(column.source_column)}
            )
        if isinstance(column, NumericColumn) and column.length_key is None:
            return NumericFrameColumn(
                **column.get_params(deep=False), feature_names=list(feature_names)
            )
        return column

    return FeatureColumns([named(column) for column in columns.columns])
