# SPDX-License-Identifier: Apache-2.0
"""What tests ask of processes."""

import time
from pathlib import Path

SECONDS = 60.0


def state(pid):
    """Return the letter of the kernel for what a process does; "Z" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_running(pid):
    return state(pid) != "Z"


def pids(processes):
    """Return the process of each that runs, by name."""
    return {
        name: pid
        for name, job in processes._jobs.items()
        if not job.future.done()
        for pid in list(job.executor._processes)
    }


def wait_for(condition, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
