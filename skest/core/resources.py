# SPDX-License-Identifier: Apache-2.0
"""What a call takes: device, intra-op threads, memory, and the modules of torch."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from types import CodeType, MethodType
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

# One more thread pays off from about 20 ms of arithmetic per step on. Below that, threads
# that wait for each other cost more than they bring, and on a machine with other work
# they cost a multiple: a step of 0.4 ms took 10 to 27 times as long with two threads
# beside one busy process.
FLOP_PER_THREAD = 1e9


def resolve_device(device: Any) -> torch.device:
    """Return the device that `device` of a `RunConfig` names.

    Raises
    ------
    ValueError
        If the name is no device, or the device is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"'device' must be \"auto\" or a torch device such as 'cpu' or 'cuda:0'; "
            f"got {device!r}."
        ) from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"'device' is {device!r}, but this PyTorch finds no CUDA device; "
            "use device='auto' or 'cpu'."
        )
    return resolved


def device_or_auto(device: Any) -> Any:
    """Return `device`, or "auto" if it is on no device of this machine.

    A model that was trained on a GPU predicts without one.
    """
    try:
        resolve_device(device)
    except ValueError:
        return "auto"
    return device


def dense_size(network: nn.Module) -> int:
    """Return the number of weights of a network without those of its row tables."""
    return sum(
        p.numel() for p in network.parameters() if not getattr(p, "is_row_table", False)
    )


def threads_for(n_weights: int, batch_size: int, *, passes: int) -> int:
    """Return how many threads the work of one step keeps busy.

    Parameters
    ----------
    n_weights : int
        The `dense_size` of the network: each weight costs two floating-point operations
        per row and pass. Row tables cost nothing, as only single rows are read.
    batch_size : int
        Rows of a step.
    passes : int
        1 for prediction; 3 for training (forward, and twice that backward).
    """
    return 1 + int(2 * passes * n_weights * batch_size // FLOP_PER_THREAD)


class IntraOpThreads:
    """Sets PyTorch's number of intra-op threads for a while.

    PyTorch keeps one number for every thread of Python, and starts new threads with the
    number set last, by whichever thread. So a thread that starts while another one is
    limited finds that limit; the setting of its caller is the one before the limit.

    A process that was forked gets by with one: it waits for ever for threads that its
    parent has started.

    Examples
    --------
    >>> import torch
    >>> from skest.core.resources import IntraOpThreads
    >>> before = torch.get_num_threads()
    >>> with IntraOpThreads.limited_to(1, wanted="auto"):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """

    _lock = threading.Lock()
    _callers_setting = 1
    _limit = 1
    _own: ClassVar[dict[int, int]] = {}  # callers' settings by running thread
    _follows_forks = False
    _is_forked = False

    @classmethod
    def limited_to(
        cls, useful: int, *, wanted: int | Literal["auto"]
    ) -> AbstractContextManager[None]:
        """Return a context with `wanted` threads, or for "auto" with at most `useful` ones.

        "auto" never takes more threads than the caller has allowed to PyTorch.
        """
        if not cls._follows_forks and hasattr(os, "register_at_fork"):
            cls._follows_forks = True
            os.register_at_fork(after_in_child=cls._after_fork)
        # The usual case of a process that is one of many: there is nothing to set.
        if wanted in ("auto", 1) and not cls._own and torch.get_num_threads() == 1:
            return nullcontext()
        return cls._limited_to(useful, wanted)

    @classmethod
    @contextmanager
    def _limited_to(cls, useful: int, wanted: int | Literal["auto"]) -> Iterator[None]:
        thread = threading.get_ident()
        with cls._lock:
            before = torch.get_num_threads()
            is_nested = thread in cls._own
            if not is_nested:
                cls._own[thread] = cls._setting_of_caller(before)
            # Of the outermost context of this thread.
            own = cls._own[thread]
            threads = min(useful, own) if wanted == "auto" else wanted
            # Also if the user wants more: it would hang.
            threads = 1 if cls._is_forked else threads
            if threads != before:
                torch.set_num_threads(threads)
                cls._limit = threads
        try:
            yield
        finally:
            with cls._lock:
                if not is_nested:
                    del cls._own[thread]
                # Not what was found: another thread may have limited it.
                restored = before if is_nested else own
                if torch.get_num_threads() != restored:
                    torch.set_num_threads(restored)

    @classmethod
    def _after_fork(cls) -> None:
        # The threads of OpenMP do not outlive a fork: a child that waits for them
        # hangs.
        cls._is_forked, cls._lock = True, threading.Lock()
        torch.set_num_threads(1)

    @classmethod
    def _setting_of_caller(cls, found: int) -> int:
        if not cls._own:
            cls._callers_setting = found
        # Set by another thread that is limited now, not by the caller.
        elif found == cls._limit:
            return cls._callers_setting
        return found


_TABLES_SHOWN = 3


@contextmanager
def explained_out_of_memory(
    n_rows: int, device: torch.device, network: nn.Module
) -> Iterator[None]:
    """Name the batch size and the largest variables if the block runs out of memory.

    Parameters
    ----------
    n_rows : int
        Rows of a batch.
    device : torch.device
        Where the block computes.
    network : Module
        Whose variables are there, or are to go there.

    Raises
    ------
    torch.OutOfMemoryError
        In place of the one that the block raised on a GPU.
    MemoryError
        In place of the RuntimeError that PyTorch raises where the memory of the machine
        is at its end, be the device a GPU or not.

    Examples
    --------
    >>> import torch
    >>> from skest.core.resources import explained_out_of_memory
    >>> network = torch.nn.Embedding(1000, 8)
    >>> with explained_out_of_memory(128, torch.device("cuda"), network):
    ...     raise torch.OutOfMemoryError("tried to allocate 1.00 GiB")
    Traceback (most recent call last):
    ...
    torch.OutOfMemoryError: The memory of cuda is at its end with batches of 128 rows ...
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(
            _message(error, n_rows, device, network)
        ) from error
    except RuntimeError as error:
        if "not enough memory" not in str(error) and (
            "can't allocate memory" not in str(error)
        ):
            raise
        raise MemoryError(
            _message(error, n_rows, torch.device("cpu"), network)
        ) from error


def _message(
    error: RuntimeError, n_rows: int, device: torch.device, network: nn.Module
) -> str:
    sizes = {
        name: (tuple(p.shape), p.numel() * p.element_size())
        for name, p in network.named_parameters()
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1][1])[:_TABLES_SHOWN]
    shown = ", ".join(
        f"{name!r} of shape {shape}, {bytes_in_words(n)}"
        for name, (shape, n) in largest
    )
    total = sum(prod(shape) for shape, _ in sizes.values())
    listed = f" (largest: {shown})" if largest else ""
    return (
        f"The memory of {device} is at its end with batches of {n_rows} rows and "
        f"{total:,} weights{listed}; optimizers keep up to two numbers more for each. "
        "Take a smaller batch size, fewer buckets or a smaller dimension, or another "
        f"device. ({error})"
    )


def bytes_in_words(n_bytes: float) -> str:
    """Return a number of bytes in words.

    Examples
    --------
    >>> from skest.core.resources import bytes_in_words
    >>> bytes_in_words(3 * 2**20)
    '3.0 MiB'
    """
    for unit in ("bytes", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


# Of the wrapper that keeps methods from being compiled. Its first call imports
# torch._dynamo, which takes longer than many a training.
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
    # Somebody compiles: the wrapper is needed, and costs no import any more.
    if "torch._dynamo" in sys.modules:
        return function
    is_wrapped = getattr(function, "__code__", None) is wrapper
    return function.__wrapped__ if is_wrapped else function  # type: ignore[attr-defined]


def without_dynamo(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its guard if ``torch._dynamo`` is not imported.

    Examples
    --------
    >>> import torch
    >>> from skest.core.resources import without_dynamo
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
    >>> from skest.core.resources import new_optimizer
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> new_optimizer(torch.optim.SGD, [weight], lr=0.5).param_groups[0]["lr"]
    0.5
    """
    # By hand, because constructors call `add_param_group` with its guard.
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
        # On the object, past the guard of that of the class.
        self.__torch_dispatch__ = MethodType(dispatch, self)  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        del self.__torch_dispatch__
