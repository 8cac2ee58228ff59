# SPDX-License-Identifier: Apache-2.0
"""Whether code of a user's is called when the next batch is read and encoded."""

from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skest._random import is_known_code
from skest.inputs.batches import Source
from skest.spec import EstimatorSpec

__all__ = ["holds_only_known_code", "is_known_input"]

# They call nothing; what else NumPy and torch have may hold functions of a user's.
_DATA = frozenset({bool, int, float, complex, str, bytes, type(None)})
_DATA |= {Tensor, nn.Parameter, torch.device, torch.dtype}
_COLLECTIONS = (list, tuple, set, frozenset)
_PACKAGES = {"builtins", "numpy", "skest", "torch"}


def is_known_input(source: Source, spec: EstimatorSpec) -> bool:
    """Tell whether batches come without a call of code that is not of skest.

    Parameters
    ----------
    source : Source
        Raw batches.
    spec : EstimatorSpec
        Encodes them.

    Returns
    -------
    bool
        True for a table, which is encoded before the first step, and for files that are
        read as they are, if nothing that `encode` and `encode_labels` hold is a user's.
    """
    if source.table is not None:
        return True
    return source.reads_files and holds_only_known_code(spec.encode, spec.encode_labels)


def holds_only_known_code(*parts: Any) -> bool:
    """Tell whether all that can be called from some objects is code of skest.

    Parameters
    ----------
    *parts
        Functions, objects of skest and data, and whatever they hold. An object of any
        other kind is taken for one that may call code of a user's.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.execution.known_input import holds_only_known_code
    >>> from skest.feature_columns import numeric_column
    >>> holds_only_known_code(numeric_column("x", normalizer="standard"))
    True
    >>> holds_only_known_code([numeric_column("x", normalizer=np.vectorize(abs))])
    False
    """
    left = list(parts)
    seen: dict[int, Any] = {}
    while left:
        part = left.pop()
        if _is_data(part) or id(part) in seen:
            continue
        seen[id(part)] = part  # kept, so that no other gets its id
        held = _held(part)
        if held is None:
            return False
        left += held
    return True


def _is_data(part: Any) -> bool:
    kind = type(part)
    if kind is np.ufunc:  # np.frompyfunc makes others, of any function
        return getattr(np, part.__name__, None) is part
    is_of_numpy = kind.__module__.partition(".")[0] == "numpy"
    return kind in _DATA or (is_of_numpy and isinstance(part, np.generic | np.dtype))


def _held(part: Any) -> list[Any] | None:
    """Return what an object holds, or None if it may call what is not known."""
    kind = type(part)
    if kind is np.ndarray:
        return part.ravel().tolist() if part.dtype == object else []
    if kind is dict:
        return [*part, *part.values()]
    if kind in _COLLECTIONS:
        return list(part)
    if kind is partial:
        return [part.func, part.args, part.keywords]
    if kind is MethodType:
        return [part.__func__, part.__self__]
    if kind is FunctionType:
        cells = [cell.cell_contents for cell in part.__closure__ or ()]
        own = [*cells, part.__defaults__, part.__kwdefaults__]
        return own if is_known_code(part) else None
    if isinstance(part, type):
        return [] if part.__module__.partition(".")[0] in _PACKAGES else None
    if not is_known_code(kind):
        return None
    items = list(part) if isinstance(part, _COLLECTIONS) else []
    return [*items, *getattr(part, "__dict__", {}).values(), *_slots(part)]


def _slots(part: Any) -> Iterator[Any]:
    """Yield what an object holds in slots."""
    for kind in type(part).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if hasattr(part, name) and name not in ("__dict__", "__weakref__"):
                yield getattr(part, name)
