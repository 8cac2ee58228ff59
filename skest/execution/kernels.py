# SPDX-License-Identifier: Apache-2.0
"""The quickest way to call an operation, and its variants that allocate nothing."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["function_for", "in_place_variant", "out_variant", "view_variant"]

# Operations whose function in the namespace `torch`, and whose method in place if there
# is one, take the same arguments as the operation itself, with the same defaults. Such a
# call takes half of the time that one through `torch.ops` takes: 1 µs instead of 2.
_SAME_IN_TORCH = frozenset(
    """
    abs add addcdiv addcmul addmm all amax amin any argmax
    bitwise_and bmm cat clamp clamp_min copy cumsum
    detach div embedding eq exp expm1 expand gather ge gt index_add index_copy
    index_select le lerp log log1p log_softmax logical_and logical_not logical_or
    logsumexp lt masked_fill maximum mean minimum mm mul native_batch_norm ne neg pow
    reciprocal relu rsqrt scatter scatter_add select sigmoid sign sort sqrt square sub
    sum t tanh unsqueeze view where zero
    """.split()
)
_THRESHOLD_BACKWARD = torch.ops.aten.threshold_backward.grad_input._op
_MEAN = 1  # the number of this reduction in declarations of PyTorch


def function_for(operation: Any) -> Callable[..., Any]:
    """Return the fastest function that does the same as an operation.

    Parameters
    ----------
    operation : torch.ops.OpOverload
        One of ``torch.ops.aten``, or any other.

    Returns
    -------
    callable
        Takes the arguments of the operation.
    """
    if operation is torch.ops.aten.binary_cross_entropy_with_logits.default:
        return _binary_cross_entropy
    return _in_torch(operation) or _unwrapped(operation)


@functools.cache
def out_variant(
    operation: Any, device_type: str
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """Return the variant of an operation that writes into given tensors.

    Parameters
    ----------
    operation : torch.ops.OpOverload
        One that returns new tensors.
    device_type : str
        Only a variant with a kernel of its own there counts: the others compute
        new tensors and copy them.

    Returns
    -------
    function : callable
        Takes the arguments of the operation, and the tensors to write into.
    names : tuple of str
        Keywords of the latter.
    """
    if operation is torch.ops.aten.sort.default and device_type == "cpu":
        return _sort, ("values", "indices")
    wanted = [(a.name, str(a.type)) for a in operation._schema.arguments]
    for variant in _overloads(operation.overloadpacket):
        arguments = variant._schema.arguments
        outs = tuple(a.name for a in arguments if a.is_out)
        others = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        if outs and others == wanted and _has_kernel(variant, device_type):
            function = _in_torch(operation) if outs == ("out",) else None
            return function or _unwrapped(variant), outs
    return None


@functools.cache
def in_place_variant(operation: Any, device_type: str) -> Callable[..., Any] | None:
    """Return the variant of an operation that changes its first argument, or None.

    Parameters
    ----------
    operation, device_type
        As for `out_variant`.
    """
    if operation is torch.ops.aten.threshold_backward.default and device_type == "cpu":
        return _threshold_backward_
    variant = _variant(operation, f"{operation.overloadpacket.__name__}_")
    if variant is None or not _has_kernel(variant, device_type):
        return None
    return function_for(variant)


@functools.cache
def view_variant(operation: Any) -> Any | None:
    """Return the operation that returns a view instead of changing a shape, or None.

    Parameters
    ----------
    operation : torch.ops.OpOverload
        One that changes the shape of its first argument in place.

    Returns
    -------
    torch.ops.OpOverload or None

    Examples
    --------
    >>> import torch
    >>> from skest.execution.kernels import view_variant
    >>> view_variant(torch.ops.aten.transpose_.default).name()
    'aten::transpose.int'
    >>> view_variant(torch.ops.aten.resize_.default) is None
    True
    """
    name: str = operation.overloadpacket.__name__
    found = _variant(operation, name.removesuffix("_"))
    returns = [] if found is None else found._schema.returns
    is_view = any(r.alias_info is not None for r in returns)
    return found if is_view else None


def _in_torch(operation: Any) -> Callable[..., Any] | None:
    """Return the function or method of torch that is an operation of its own, or None."""
    name = operation.overloadpacket.__name__
    base = name.removesuffix("_")
    is_known = base in _SAME_IN_TORCH or base.startswith(("_foreach_", "_fused_"))
    if operation.namespace != "aten" or not is_known:
        return None
    return getattr(torch, name, None) or getattr(Tensor, name, None)


def _unwrapped(operation: Any) -> Callable[..., Any]:
    """Return what an operation calls, past a method in Python that only hands over."""
    return operation._op if operation.namespace == "aten" else operation


def _variant(operation: Any, name: str) -> Any | None:
    """Return the operation of another name that takes the same arguments, or None."""
    packet = getattr(torch.ops.aten, name, None)
    if operation.namespace != "aten" or packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in operation._schema.arguments]
    for variant in _overloads(packet):
        if [(a.name, str(a.type)) for a in variant._schema.arguments] == wanted:
            return variant
    return None


def _binary_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    # The function of torch has other defaults.
    return torch.binary_cross_entropy_with_logits(
        logits, labels, weight, pos_weight, reduction
    )


def _sort(
    tensor: Tensor, dim: int = -1, descending: bool = False, **out: Tensor
) -> None:
    # What the operation without "stable" leads to; only this one has a variant.
    torch.ops.aten.sort.values_stable(
        tensor, stable=False, dim=dim, descending=descending, **out
    )


def _threshold_backward_(gradient: Tensor, source: Tensor, threshold: float) -> Tensor:
    # Goes through the elements one by one, so that the gradient may be written over.
    return _THRESHOLD_BACKWARD(gradient, source, threshold, grad_input=gradient)


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, name) for name in packet.overloads()]


def _has_kernel(operation: Any, device_type: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        operation.name(), device_type.upper()
    )
