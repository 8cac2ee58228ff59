# SPDX-License-Identifier: Apache-2.0
"""`TableColumns`: columns that are read once, by all who read them."""

from collections.abc import Mapping
from typing import Any

__all__ = ["TableColumns"]


class TableColumns(dict[Any, Any]):
    """A dict of columns of which there is one `Table` only.

    What is learned from first and encoded then, by several parts, is read once that way.
    Nobody may change the columns.

    Parameters
    ----------
    columns : dict of arrays
        The columns, see `skest.feature_columns.table.Table`.

    Attributes
    ----------
    table : Table or None
        The table, with what was read, since somebody asked for it.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.table import Table
    >>> from skest.feature_columns.table_columns import TableColumns
    >>> columns = TableColumns({"color": np.array(["red", "green"])})
    >>> Table(columns) is Table(columns)
    True
    """

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        super().__init__(columns)
        self.table: Any = None

    def __or__(self, others: Any) -> Any:
        """Return these columns and others; what was read of these goes with them."""
        joined = TableColumns({**self, **others})
        if self.table is not None and self.keys().isdisjoint(others):
            joined.table = self.table.beside(others)
        self.let_go()
        return joined

    def let_go(self) -> None:
        """Forget what was read, which may take more memory than the columns."""
        self.table = None

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)
