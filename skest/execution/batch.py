# SPDX-License-Identifier: Apache-2.0
"""The tensors of a batch in a fixed order, and what batches of the same kind share."""

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

__all__ = ["batch_tensors"]


def batch_tensors(data: Any) -> tuple[list[Tensor], Hashable]:
    """Take a nest of dictionaries, tuples and lists of tensors apart.

    Parameters
    ----------
    data
        Features and labels; None stands for what is not there.

    Returns
    -------
    tensors : list of Tensor
        In the order in which they come, each once.
    kind : hashable
        The same for all batches of the same structure, shapes, strides and types.

    Raises
    ------
    TypeError
        If there is something else than tensors in it.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.batch import batch_tensors
    >>> tensors, kind = batch_tensors(({"x": torch.ones(3, 2)}, torch.zeros(3)))
    >>> len(tensors), kind == batch_tensors(({"x": torch.zeros(3, 2)}, torch.ones(3)))[1]
    (2, True)
    """
    tensors: dict[int, Tensor] = {}
    kind = _kind(data, tensors)
    return list(tensors.values()), kind


def _kind(data: Any, tensors: dict[int, Tensor]) -> Hashable:
    if isinstance(data, Tensor):
        if id(data) in tensors:
            return list(tensors).index(id(data))
        tensors[id(data)] = data
        return data.shape, data.stride(), data.dtype
    if isinstance(data, dict | Mapping):
        return tuple([(key, _kind(value, tensors)) for key, value in data.items()])
    if isinstance(data, tuple | list):
        return tuple([_kind(value, tensors) for value in data])
    if data is None:
        return None
    raise TypeError(f"a batch has a {type(data).__name__} beside its tensors")
