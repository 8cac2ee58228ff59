# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a training between two steps."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["INTERRUPTED", "stopping_on_interrupt"]

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
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    owner = os.getpid()

    def handle(signum: int, frame: FrameType | None) -> None:
        # Ctrl-C also goes to processes that were forked to load data. They stay, so that
        # the step can be finished, and end with this one.
        if os.getpid() != owner:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _logger.warning(
            "Ctrl-C: training stops after this step and saves a checkpoint; press it "
            "again to stop at once."
        )
        request_stop(INTERRUPTED)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
