# SPDX-License-Identifier: Apache-2.0
"""Runs a script as a task of a cluster, as long as the process that started it is there.

``python -m skest.distributed.task PARENT SCRIPT ARGUMENT...``
"""

import os
import runpy
import signal
import sys
import threading
import time

_GLANCE = 1.0


def end_with(parent: int) -> None:
    """End this process soon after the one that started it has ended, however that was.

    Parameters
    ----------
    parent : int
        Process that started this one.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    # A signal at the death of the parent is there on Linux only.
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    # Not by `sys.exit`, which would end this thread only.
    os._exit(1)


def run_script(path: str, arguments: list[str]) -> None:
    """Run a script as ``python PATH ARGUMENT...`` does."""
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    _, parent, path, *arguments = sys.argv
    end_with(int(parent))
    # Whoever started this may ignore or block Ctrl-C, which processes inherit; it is how a
    # task is asked to save and end.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_script(path, arguments)
