# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a training between two steps; elsewhere it raises KeyboardInterrupt."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

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
        Called with `INTERRUPTED`. It may raise KeyboardInterrupt.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is not signal.default_int_handler:
        yield
        return

    signal.signal(signal.SIGINT, _AskToStop(request_stop))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
        self._request_stop(INTERRUPTED)
        _logger.warning(
            "Ctrl-C: training stops after this step and saves a checkpoint; press it "
            "again to stop at once."
        )


@contextmanager
def raising_on_interrupt() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt in a training, too, of which nothing is kept.

    That of many models that are compared is of no use half done. A handler that the
    program has set stays in force.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
