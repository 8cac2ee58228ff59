# SPDX-License-Identifier: Apache-2.0
"""Notices child processes that are stopped, as SIGSTOP does it, and stay so."""

import os
import threading
from collections.abc import Callable

__all__ = ["wait_for_end"]


def wait_for_end(pid: int, lease: float, stands_still: Callable[[], None]) -> None:
    """Wait until a child process has ended; its exit status is still to be asked for.

    The kernel tells who is stopped and who goes on: a process needs to do nothing for it,
    and may be as busy or as idle as it likes.

    Parameters
    ----------
    pid : int
        The process.
    lease : float, seconds
        How long it may be stopped without a break.
    stands_still : callable
        Called, in another thread, if it is stopped for longer.
    """
    while True:
        change = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        if change is None or change.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            return
        timer = threading.Timer(lease, stands_still)
        timer.daemon = True
        timer.start()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WCONTINUED | os.WNOWAIT)
        timer.cancel()
