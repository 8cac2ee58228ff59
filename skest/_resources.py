# SPDX-License-Identifier: Apache-2.0
"""The device and the intra-op threads of one call."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import nn

__all__ = [
    "IntraOpThreads",
    "dense_size",
    "device_or_auto",
    "resolve_device",
    "threads_for",
]

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
    if isinstance(device, str) and device == "auto":
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
    >>> from skest._resources import IntraOpThreads
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
            own = cls._own[thread]
            threads = min(useful, own) if wanted == "auto" else wanted
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
                restored = before if is_nested else own
                if torch.get_num_threads() != restored:
                    torch.set_num_threads(restored)

    @classmethod
    def _after_fork(cls) -> None:
        cls._is_forked, cls._lock = True, threading.Lock()
        torch.set_num_threads(1)

    @classmethod
    def _setting_of_caller(cls, found: int) -> int:
        if not cls._own:
            cls._callers_setting = found
        elif found == cls._limit:
            return cls._callers_setting
        return found
