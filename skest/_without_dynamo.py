# SPDX-License-Identifier: Apache-2.0
"""Spares a process that compiles nothing the import of ``torch._dynamo``.

torch keeps ``torch.compile`` out of optimizers and dispatch modes by a guard that imports
``torch._dynamo`` when it is first called, which takes longer than a small fit. Until that
is imported nothing can be compiled, and what is inside the guard may be called.
"""

import sys
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any

import torch
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode", "inside", "new_optimizer", "without_dynamo"]

_GUARD = torch._disable_dynamo(Optimizer.step).__code__


def inside(function: Callable[..., Any], wrapper: CodeType) -> Callable[..., Any]:
    """Return what a wrapper of torch wraps if ``torch._dynamo`` is not imported.

    Parameters
    ----------
    function : callable
        Returned as it is in all other cases.
    wrapper : code
        That of the functions which the wrapper returns.
    """
    if "torch._dynamo" in sys.modules:
        return function
    is_wrapped = getattr(function, "__code__", None) is wrapper
    return function.__wrapped__ if is_wrapped else function  # type: ignore[attr-defined]


def without_dynamo(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its guard if ``torch._dynamo`` is not imported.

    Examples
    --------
    >>> import torch
    >>> from skest._without_dynamo import without_dynamo
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    >>> state_dict = without_dynamo(torch.optim.SGD.state_dict)
    >>> state_dict(optimizer)["param_groups"][0]["lr"]
    0.5
    """
    return inside(method, _GUARD)


def new_optimizer(cls: type[Optimizer], params: Any, **options: Any) -> Optimizer:
    """Return ``cls(params, **options)``.

    Examples
    --------
    >>> import torch
    >>> from skest._without_dynamo import new_optimizer
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> new_optimizer(torch.optim.SGD, [weight], lr=0.5).param_groups[0]["lr"]
    0.5
    """
    made = cls.__new__(cls)
    add = MethodType(without_dynamo(cls.add_param_group), made)
    made.add_param_group = add  # type: ignore[method-assign]
    cls.__init__(made, params, **options)
    del made.add_param_group
    return made


class DispatchMode(TorchDispatchMode):
    """Sees the operations of torch, as ``TorchDispatchMode``."""

    def __enter__(self) -> Any:
        dispatch = without_dynamo(type(self).__torch_dispatch__)
        self.__torch_dispatch__ = MethodType(dispatch, self)  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        del self.__torch_dispatch__
