# SPDX-License-Identifier: Apache-2.0
"""`Impurity`: what a model does in a call beside operations on tensors."""

from collections.abc import Mapping
from contextlib import ExitStack
from operator import is_
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from skest.execution.remembered import (
    PLAIN,
    random_states,
    remembered,
    remembered_by_modules,
)
from skest.execution.watching import has_compiled_modules

__all__ = ["Impurity", "are_same"]

_READING = {"__array__", "__dlpack__", "__float__", "__format__", "__int__", "__repr__"}
_READING |= {"apply_", "map_", "numpy", "tolist"}
# They read the numbers of tensors in a list, and whole tensors by operations.
_MAKING = {"as_tensor", "asarray", "new_tensor", "tensor"}
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
# They compute in another way where functions of tensors are watched, unless they train.
_WITH_FAST_PATH = (
    nn.MultiheadAttention,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
)


class Impurity:
    """Notices what cannot be repeated from a recording of tensor operations.

    That is a call which reads the numbers of tensors by ``tolist``, ``numpy``, ``repr`` or
    ``torch.tensor([...])``, in a backward pass, too; sets ``Tensor.data``; changes
    attributes, or what its functions read (see `skest.execution.remembered`); runs modules
    that were compiled; or draws from the random generators of Python and NumPy. Nothing is
    changed outside of the thread that enters it.

    Parameters
    ----------
    network : torch.nn.Module or None
        The network that is called.
    *functions : callable or None
        What is called beside it.
    is_trial : bool, default=False
        Whether nobody uses the results. Otherwise numbers may be read unnoticed where
        modules would round differently if somebody watched.

    Attributes
    ----------
    obstacle : str or None
        What was noticed.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.impurity import Impurity
    >>> network = torch.nn.Linear(2, 1)
    >>> with Impurity(network) as impurity:
    ...     largest = max(network(torch.ones(1, 2)).detach().flatten().tolist())
    >>> impurity.obstacle
    "'Tensor.tolist' makes Python depend on data"
    """

    def __init__(
        self, network: nn.Module | None, *functions: Any, is_trial: bool = False
    ) -> None:
        self.obstacle: str | None = None
        self._modules = [] if network is None else list(network.modules())
        self._functions = functions
        self._reading = _Reading()
        self._may_read = not is_trial and not all(
            [m.training or not isinstance(m, _WITH_FAST_PATH) for m in self._modules]
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._before = (self._attributes(), self._remembered(), random_states())
        if not self._may_read:
            self._stack.enter_context(self._reading)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
        drawn = self._before[-1]
        self.obstacle = self.change_since()
        if self.obstacle is not None:
            return
        if has_compiled_modules(self._modules):
            self.obstacle = "torch.compile was called for a module"
        elif drawn != random_states():
            self.obstacle = "the model draws random numbers of Python or NumPy"
        else:
            self.obstacle = self._reading.obstacle

    def change_since(self) -> str | None:
        """Tell what is other than when this was entered, if anything of the model is."""
        attributes, held, _ = self._before
        if not are_same(attributes, self._attributes()):
            return "the model changes attributes of its modules in a step"
        if not are_same(held, self._remembered()):
            return "the model changes in a step what its Python code reads"
        return None

    def _attributes(self) -> list[Any]:
        """Return attributes of all modules, their parameters and buffers among them."""
        found = [value for module in self._modules for value in vars(module).values()]
        return found + [
            item
            for value in found
            if isinstance(value, dict)
            for item in value.values()
        ]

    def _remembered(self) -> list[Any]:
        found = remembered_by_modules(self._modules)
        return found + [part for f in self._functions for part in remembered(f)]


class _Reading(TorchFunctionMode):
    """Notices methods of tensors that give their numbers and are no operations."""

    def __init__(self) -> None:
        super().__init__()
        self.obstacle: str | None = None

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.obstacle is None:
            if func is Tensor.backward and _is_of_a_loss(*args, **(kwargs or {})):
                return self._backward(args[0])
            name = getattr(func, "__name__", "")
            given = (*args, *(kwargs or {}).values())
            if (
                name in _READING
                or (name in _MAKING and any(map(_lists_tensors, given)))
                or (name == "tensor_split" and isinstance(given[1], Tensor))
            ):
                self.obstacle = f"'Tensor.{name}' makes Python depend on data"
            elif func == _SET_DATA:
                self.obstacle = "'Tensor.data' is set in a step"
        return func(*args, **(kwargs or {}))

    def _backward(self, loss: Tensor) -> None:
        """Compute gradients, and look on while hooks and functions of others do so.

        As a tensor, the loss would lead here again.
        """
        edge = get_gradient_edge(loss)
        with self:
            torch.autograd.backward(edge)


def _is_of_a_loss(loss: Tensor, **options: Any) -> bool:
    """Tell whether ``backward`` is called as it is in a step."""
    is_plain = all([o is None or o is False for o in options.values()])
    return is_plain and loss.numel() == 1


def _lists_tensors(data: Any) -> bool:
    """Tell whether there are tensors in a list, or in lists in it."""
    if isinstance(data, list | tuple):
        return any([isinstance(d, Tensor) or _lists_tensors(d) for d in data])
    return False


def are_same(before: list[Any], after: list[Any]) -> bool:
    """Tell whether objects are still the same, and numbers still equal."""
    if len(before) != len(after):
        return False
    return all(map(is_, before, after)) or all(  # mostly, and much faster
        first is second or (type(first) in PLAIN and first == second)
        for first, second in zip(before, after, strict=True)
    )
