# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a training between two steps, and an evaluation at once."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = [
    "INTERRUPTED",
    "answering_interrupts_afterwards",
    "do_until_interrupt",
    "stopping_on_interrupt",
]

INTERRUPTED = "interrupted by Ctrl-C"

_logger = logging.getLogger("skest")


@contextmanager
def stopping_on_interrupt(request_stop: Callable[[str], None]) -> Iterator[None]:
    """Make the first Ctrl-C ask to stop; the second raises KeyboardInterrupt as ever.

    A step that is cut short leaves variables of which some are updated and some are not,
    so it is brought to its end. Other threads than the main one get no Ctrl-C, and a
    handler that the program has set stays in force.

    Parameters
    ----------
    request_stop : callable
        Called with `INTERRUPTED`.
    """
    if not _in_main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    signal.signal(signal.SIGINT, _AskToStop(request_stop))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def do_until_interrupt(
    work: Callable[[], object], request_stop: Callable[[str], None]
) -> None:
    """Do work that Ctrl-C ends at once, quietly, and that can be done again.

    It may stand inside `stopping_on_interrupt`, where that was the first Ctrl-C, and in
    the same threads and programs. Elsewhere the work is done as if alone.

    Parameters
    ----------
    work : callable
        What to do.
    request_stop : callable
        Called with `INTERRUPTED` if there was a Ctrl-C.
    """
    before = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or not (
        before is signal.default_int_handler
        or isinstance(before, _AskToStop | _BreakOff)
    ):
        work()
        return

    # What it raises is raised inside this block only, wherever Ctrl-C comes.
    handler = _BreakOff()
    signal.signal(signal.SIGINT, handler)
    try:
        handler.is_at_work = True
        if not handler.came:
            work()
        handler.is_at_work = False
    except KeyboardInterrupt:
        handler.came = True
    except Exception:
        # Some C code puts an error of its own in the place of the KeyboardInterrupt.
        if not handler.came:
            raise
    finally:
        handler.is_at_work = False
        signal.signal(signal.SIGINT, before)
    if handler.came:  # perhaps unnoticed, as in a destructor
        signal.signal(signal.SIGINT, signal.default_int_handler)
        request_stop(INTERRUPTED)


@contextmanager
def answering_interrupts_afterwards() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block, for short work that would hide it.

    A handler runs where C code calls Python, and some C code puts an error of its own in
    the place of the KeyboardInterrupt.
    """
    before = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or not callable(before):
        yield
        return

    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda signum, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])


class _BreakOff:
    """Raises KeyboardInterrupt while there is work, and knows if there was a Ctrl-C."""

    def __init__(self) -> None:
        self.is_at_work = False
        self.came = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.came = True
        if self.is_at_work:
            raise KeyboardInterrupt


class _AskToStop:
    """Answers one Ctrl-C, and leaves the next one to Python."""

    def __init__(self, request_stop: Callable[[str], None]) -> None:
        self._request_stop = request_stop
        self._owner = os.getpid()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        # Ctrl-C also goes to processes that were forked to load data. They stay, so that
        # the step can be finished, and end with this one.
        if os.getpid() != self._owner:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _logger.warning(
            "Ctrl-C: training stops after this step and saves a checkpoint; press it "
            "again to stop at once."
        )
        self._request_stop(INTERRUPTED)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
