# SPDX-License-Identifier: Apache-2.0
"""Measures work side by side: each in a process of its own, in turns of a moment.

The clock of a machine that others share halves and doubles within seconds, so that of two
fits, one after the other, one is lucky. In turns all meet the same clock. Processor time
counts, which is time on the wall for work in one thread that has a core for itself.
"""

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

__all__ = ["seconds_in_turns"]

_SECONDS_OF_TURN = 0.05

_fork = multiprocessing.get_context("fork")  # what was warmed up is warm


def seconds_in_turns(
    works: Mapping[str, Callable[[], object]], least_seconds: float
) -> dict[str, float]:
    """Return the seconds of a call of each, of as many as come to an end.

    Parameters
    ----------
    works : dict of str to callable
        Work of one thread, that was done before in this process.
    least_seconds : float
        How much time each has at least. It has more until all have come to an end once.

    Raises
    ------
    RuntimeError
        If one ends with an error, which its process prints.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    processes, results = {}, {}
    try:
        for name, work in works.items():
            results[name], sender = _fork.Pipe(duplex=False)
            processes[name] = _fork.Process(target=_repeat, args=(work, sender))
            processes[name].start()
            os.kill(processes[name].pid, signal.SIGSTOP)
            sender.close()
        n_turns = 0
        while n_turns * _SECONDS_OF_TURN < least_seconds or not all(found.values()):
            n_turns += 1
            for name, process in processes.items():
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(_SECONDS_OF_TURN)
                os.kill(process.pid, signal.SIGSTOP)
                while results[name].poll():
                    found[name].append(_received(results[name], name))
    finally:
        for process in processes.values():
            process.kill()
            process.join()
    # The first call writes to memory that is still that of this process.
    return {name: statistics.mean(s[1:] or s) for name, s in found.items()}


def _repeat(work: Callable[[], object], sender: Connection) -> None:
    while True:
        start = time.process_time()
        work()
        sender.send(time.process_time() - start)


def _received(results: Connection, name: str) -> float:
    try:
        seconds: float = results.recv()
    except EOFError:
        raise RuntimeError(f"{name!r} ended with the error above.") from None
    return seconds
