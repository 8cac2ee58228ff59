# SPDX-License-Identifier: Apache-2.0
"""The tensors of a batch in a fixed order, and what batches of the same kind share."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["batch_tensors", "has_same_tensors", "kind_of_rows", "kind_of_tensor"]


_LAYOUTS = (torch.strided, torch.sparse_coo)  # of which operations are recorded
# Unions that are written where they are used are made anew in every step. `Mapping`
# looks longer than `dict`.
_SEQUENCES, _MAPPINGS = (tuple, list), (dict, Mapping)


def kind_of_tensor(tensor: Tensor) -> Hashable:
    """Return what counts of a tensor, or raise TypeError if it requires gradients."""
    if tensor.requires_grad:  # somebody may want them
        raise TypeError("a batch has a tensor that requires gradients")
    signs = tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), tensor.dtype, signs


def kind_of_rows(tensor: Tensor) -> Hashable:
    """Return what batches have in common whose number of rows does not matter."""
    return tensor.shape[1:], tensor.dtype, tensor.device, tensor.is_contiguous()


def batch_tensors(
    data: Any, kind_of: Callable[[Tensor], Hashable] = kind_of_tensor
) -> tuple[list[Tensor], Hashable]:
    """Take a nest of dictionaries, tuples and lists of tensors apart.

    Parameters
    ----------
    data
        Features and labels; None stands for what is not there.
    kind_of : callable, default=shape, strides, type and pending changes of signs
        Returns what counts of a tensor.

    Returns
    -------
    tensors : list of Tensor
        In the order in which they come, each once.
    kind : hashable
        The same for all batches of the same structure whose tensors are of the same
        kinds.

    Raises
    ------
    TypeError
        If there is something else than tensors in it, or if one of them requires
        gradients, unless `kind_of` is given.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.batch import batch_tensors
    >>> tensors, kind = batch_tensors(({"x": torch.ones(3, 2)}, torch.zeros(3)))
    >>> len(tensors), kind == batch_tensors(({"x": torch.zeros(3, 2)}, torch.ones(3)))[1]
    (2, True)
    """
    tensors: dict[int, Tensor] = {}
    kind = _kind(data, tensors, kind_of)
    return list(tensors.values()), kind


def has_same_tensors(data: Any, tensors: Sequence[Tensor]) -> bool:
    """Tell whether a batch still is what `batch_tensors` took apart.

    Parameters
    ----------
    data
        Features and labels.
    tensors : sequence of Tensor
        What `batch_tensors` returned before.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.batch import batch_tensors, has_same_tensors
    >>> features = {"x": torch.ones(3, 2)}
    >>> tensors, _ = batch_tensors(features)
    >>> features["y"] = features["x"].exp()
    >>> has_same_tensors(features, tensors)
    False
    """
    try:
        present, _ = batch_tensors(data, kind_of_rows)
    except TypeError:  # something else was put in
        return False
    return [*map(id, present)] == [*map(id, tensors)]


def _kind(
    data: Any, tensors: dict[int, Tensor], kind_of: Callable[[Tensor], Hashable]
) -> Hashable:
    if isinstance(data, Tensor):
        if data.layout not in _LAYOUTS:
            raise TypeError(f"a batch has a tensor of layout {data.layout}")
        if id(data) in tensors:
            return list(tensors).index(id(data))
        tensors[id(data)] = data
        return kind_of(data)
    if isinstance(data, _SEQUENCES):
        return tuple([_kind(value, tensors, kind_of) for value in data])
    if isinstance(data, _MAPPINGS):
        return tuple([(k, _kind(v, tensors, kind_of)) for k, v in data.items()])
    if data is None:
        return None
    raise TypeError(f"a batch has a {type(data).__name__} beside its tensors")
