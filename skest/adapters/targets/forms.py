# SPDX-License-Identifier: Apache-2.0
"""The forms of ``y`` with several targets: a frame, a dictionary, an array."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse

from skest.feature_columns.table import Table

__all__ = ["TargetForm", "columns_of", "is_frame"]

_ONLY = "y"


def columns_of(y: Any) -> dict[Any, Any]:
    """Return the columns of `y` by name.

    Columns of an array are called "y0", "y1" and so on; one of one dimension has its own
    name, or is called "y". A dictionary may hold matrices.
    """
    if isinstance(y, Mapping):
        y = {k: v.toarray() if issparse(v) else v for k, v in y.items()}
    if isinstance(y, Mapping) or is_frame(y):
        table = Table(_with_objects(y))
        return {key: table.cells(key) for key in table.keys}
    array = y.toarray() if issparse(y) else np.asarray(y)
    if array.ndim == 1:
        name = getattr(y, "name", None)
        return {_ONLY if name is None else name: y if hasattr(y, "iloc") else array}
    if array.ndim != 2:
        raise ValueError(
            "y must be a DataFrame, a dictionary of arrays, or an array of one or two "
            f"dimensions; got shape {array.shape}."
        )
    return {f"{_ONLY}{i}": array[:, i] for i in range(array.shape[1])}


def _with_objects(y: Any) -> Any:
    """Let integers and booleans with gaps keep their types, which pandas knows anyway."""
    if isinstance(y, Mapping | pd.DataFrame):
        return y
    import narwhals.stable.v2 as nw

    columns = {}
    for series in nw.from_native(y, eager_only=True).iter_columns():
        has_gaps = bool(series.null_count())
        is_whole = series.dtype.is_integer() or series.dtype == nw.Boolean
        columns[series.name] = (
            np.array(series.to_list(), dtype=object)
            if has_gaps and is_whole
            else series.to_native()
        )
    return columns


def is_frame(y: Any) -> bool:
    """Tell whether `y` is a table with columns by name."""
    return hasattr(type(y), "columns")


class TargetForm:
    """The form of the `y` of a fit, for answers of the same form."""

    def __init__(self, y: Any) -> None:
        self._order = list(columns_of(y))
        self._is_dict = isinstance(y, Mapping)
        self.is_column = not self._is_dict and not is_frame(y) and np.ndim(y) == 1
        self._frame: Any = None  # the library of a frame
        if is_frame(y):
            self._frame = "pandas"
            if not isinstance(y, pd.DataFrame):
                import narwhals.stable.v2 as nw

                self._frame = nw.from_native(y, eager_only=True).implementation.value

    def like_y(
        self, answers: Mapping[str, NDArray[Any]], columns: Mapping[str, Sequence[Any]]
    ) -> Any:
        """Return the answers of targets, which read `columns`, in the form of `y`."""
        if self._is_dict:
            return dict(answers)
        found: dict[Any, NDArray[Any]] = {}
        for name, some in columns.items():
            parts = [answers[name]] if len(some) == 1 else answers[name].T
            found |= dict(zip(some, parts, strict=True))
        found = {column: found[column] for column in self._order if column in found}
        if self._frame == "pandas":
            return pd.DataFrame(found)
        if self._frame is not None:
            import narwhals.stable.v2 as nw

            return nw.from_dict(found, backend=self._frame).to_native()
        if self.is_column:
            return next(iter(found.values()))
        kinds = {values.dtype.kind for values in found.values()}
        is_mixed = bool(kinds & set("OUS")) and len(kinds) > 1
        return np.column_stack(
            [v.astype(object) if is_mixed else v for v in found.values()]
        )
