# SPDX-License-Identifier: Apache-2.0
"""Other work on the machine, to measure beside."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["busy"]


@contextmanager
def busy(n_processes: int) -> Iterator[None]:
    """Keep `n_processes` cores busy with a process each."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(n_processes)]
    try:
        if processes:
            time.sleep(1)  # until they run
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
