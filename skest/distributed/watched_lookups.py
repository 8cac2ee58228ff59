# SPDX-License-Identifier: Apache-2.0
"""`WatchedLookups`: sees which rows of tables are read by any code, before they are."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["MAX_NORM_REFUSED", "WatchedLookups"]

MAX_NORM_REFUSED = (
    "An embedding with 'max_norm' changes its rows in the forward pass, which parameter "
    "servers do not see. Use embedding_column, whose 'max_norm' does not, or an embedding "
    "without it."
)
_FUNCTIONS = {F.embedding, F.embedding_bag}
_LOOKUPS = _FUNCTIONS | {torch.embedding, torch.embedding_bag}


class WatchedLookups(TorchFunctionMode):
    """Tells of every look-up in some tables, before it is made.

    Parameters
    ----------
    tables : dict of int to int
        Numbers of the tables by their address in memory.
    need : callable
        ``need(number, ids)``.

    Raises
    ------
    ValueError
        In the watched code: if it changes rows (``max_norm``), or computes something of
        a table without gradients in another way than by a look-up.
    """

    def __init__(
        self, tables: dict[int, int], need: Callable[[int, Tensor], None]
    ) -> None:
        super().__init__()
        self._tables, self._need = tables, need

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOOKUPS:
            ids, weight = _ids_and_weight(args, kwargs)
            number = self._tables.get(weight.data_ptr())
            if number is not None:
                if (
                    func in _FUNCTIONS
                    and kwargs.get("max_norm", _at_3(args)) is not None
                ):
                    raise ValueError(MAX_NORM_REFUSED)
                self._need(number, ids)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if _has_values(result) and not result.requires_grad:
            self._refuse_values_of_tables(func, [*args, *kwargs.values()], result)
        return result

    def _refuse_values_of_tables(self, func: Any, args: Any, result: Tensor) -> None:
        """Raise ValueError if values were read that may not be there.

        Where gradients are computed, those of a table become dense, which is refused, too.
        """
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or name.startswith("new_") or name.endswith("_like"):
            return
        read = any(_has_values(a) and a.data_ptr() in self._tables for a in args)
        if read and result.data_ptr() not in self._tables:
            raise ValueError(
                f"{name!r} reads a table whose rows are in parameter servers, not by "
                "their ids. Only the rows that a step looks up are here: read them with "
                "torch.nn.functional.embedding(ids, table.detach()), or make it no row "
                "table."
            )


def _has_values(found: Any) -> bool:
    """Tell whether it is a dense tensor of floating numbers."""
    return (
        isinstance(found, Tensor)
        and found.layout == torch.strided
        and found.is_floating_point()
    )


def _at_3(args: Any) -> Any:
    """Return what is given for ``max_norm`` by its place."""
    return args[3] if len(args) > 3 else None


def _ids_and_weight(args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return what look-ups take first, in one order or the other."""
    named = [kwargs[name] for name in ("input", "indices", "weight") if name in kwargs]
    first, second = [*args, *named][:2]
    return (second, first) if first.is_floating_point() else (first, second)
