# SPDX-License-Identifier: Apache-2.0
"""`prefetched`: elements computed ahead, in a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

__all__ = ["prefetched"]

_END = object()


def prefetched(
    opened: Callable[[], AbstractContextManager[Iterator[Any]]], n_ahead: int
) -> Iterator[Any]:
    """Yield the elements of an iterator that a thread advances.

    The thread ends with the iterator, or when this generator is closed; an exception is
    raised here, behind the elements that came before it.

    Parameters
    ----------
    opened : callable
        Returns the iterator as a context; the thread enters and leaves it.
    n_ahead : int
        How many elements may wait.
    """
    slots, ready = threading.Semaphore(n_ahead), SimpleQueue[Any]()
    stopped = threading.Event()

    def work() -> None:
        try:
            with opened() as elements:
                while not _has_to_stop(slots, stopped):
                    element = next(elements, _END)
                    ready.put((element, None))
                    if element is _END:
                        break
        except BaseException as error:
            ready.put((None, error))

    thread = threading.Thread(target=work, name="skest-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            element, error = ready.get()
            if error is not None:
                raise error
            if element is _END:
                return
            slots.release()
            yield element
    finally:
        stopped.set()
        slots.release()
        if (
            thread is not threading.current_thread()
        ):  # the garbage collector runs in any
            thread.join()


def _has_to_stop(slots: threading.Semaphore, stopped: threading.Event) -> bool:
    """Wait for a free slot, and tell whether the consumer is gone."""
    slots.acquire()
    return stopped.is_set()
