# SPDX-License-Identifier: Apache-2.0
"""A process of a training: ``python -m skest.distributed.task``.

`skest.distributed.supervisor` starts it. It ends when the process that started it does.
"""

import argparse
import contextlib
import ctypes
import json
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str] | None = None) -> None:
    """Do a job, or run a script.

    Parameters
    ----------
    argv : sequence of str, default=None
        ``--job N --report N JSON``: the descriptors of a file of `write_job`, whose
        function is called with these arguments by name, and of a file for an error that
        it raises; or
        ``--script PATH ARGUMENT...``. None is the command line.
    """
    end_with_parent()
    # Whoever started this may ignore or block Ctrl-C, which processes inherit; it is how a
    # task is asked to save and end.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m skest.distributed.task")
    parser.add_argument("--job", type=int)
    parser.add_argument("--report", type=int)
    parser.add_argument("--script", action="store_true")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if options.script:
        _run_script(options.arguments)
    else:
        _do_job(options.job, options.report, json.loads(options.arguments[0]))


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone.

    Its standard input must be a pipe to which nobody but that one could write: the pipe
    closes when that one ends, even by SIGKILL. On Linux the kernel sends a signal, too,
    which reaches a process whose Python code doesn't get to run.
    """
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(lifeline, 1):
            pass
    os._exit(1)


def _run_script(arguments: list[str]) -> None:
    """Run a script as ``python PATH ARGUMENT...`` does."""
    path = arguments[0]
    sys.argv[:] = arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


def _do_job(job: int, report: int, arguments: dict[str, Any]) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        from skest.distributed.job import read_job

        read_job(job)(**arguments)
    except BaseException as error:
        from skest.distributed.supervisor import dump_error

        traceback.print_exc()
        os.pwrite(report, dump_error(error), 0)
        sys.exit(1)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)  # to tear down torch takes long, and the one that started this waits


if __name__ == "__main__":
    main()
