# SPDX-License-Identifier: Apache-2.0
"""A version is loaded in a process of its own first, which may die of it.

Engines are written in C++: a hostile graph can end the process that loads it, or take all
the memory and time that there is.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skest.exceptions import ArtifactError
from skest.export.artifact import Artifact

SECONDS = 60
"""Of the processor. A process that waits for a slow disk takes none."""
MEMORY = 2**31
"""Bytes, besides four times those of the version's files, which are read, copied, unpacked,
and packed for the processor."""

_CHILD = "from skest.export import runtime, trial; trial.run_in_child(runtime.load)"
# On the clock, as a multiple of SECONDS: other processes may take the processor.
_WAITING = 10
_PER_BYTE = 4
_REFUSED, _LACKS_MEMORY = 3, 4
_LONGEST = 1000
_TEXTS = ("Failed to allocate memory", "bad_alloc", "bad allocation")


def try_out(artifact: Artifact, verify: bool) -> None:
    """Load a version in another process, with limits; return if it may be loaded here.

    Where the system has no such limits (memory on macOS, both on Windows), only the time
    on the wall is limited, to ten times `SECONDS`.

    Parameters
    ----------
    artifact : Artifact
        The version. The process reads it again, as the same digest tells.
    verify : bool
        See `skest.export.load`.

    Raises
    ------
    ArtifactError
        If the version is refused there, or takes too much, or ends the process.
    """
    size = sum(entry["size"] for entry in artifact.manifest["files"].values())
    memory = MEMORY + _PER_BYTE * size
    task = {
        "path": str(artifact.path),
        "trusted_manifest_sha256": artifact.manifest_sha256,
        "verify": verify,
    }
    limits = json.dumps([SECONDS, memory])
    # It finds what this process finds; threads would each take memory for nothing.
    there = {"PYTHONPATH": os.pathsep.join(sys.path)}
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    more = "if you trust it, load it without a trial"
    too_slow = f"takes more than {SECONDS} seconds; {more}"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD, limits, json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **there, **one},
            timeout=_WAITING * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = too_slow
    else:
        status = done.returncode
        if status == 0:
            return
        if status == _REFUSED:
            raise ArtifactError(done.stdout.decode(errors="replace"))
        what = f"ends the process with the status {status}"
        if status == _LACKS_MEMORY:
            what = f"takes more than {memory} bytes of memory; {more}"
        elif status == -getattr(signal, "SIGXCPU", 0):
            what = too_slow
    raise ArtifactError(
        f"{str(artifact.path)!r} is refused: tried in a process of its own, it {what}."
    )


def run_in_child(load: Callable[..., Any]) -> None:
    """Load the version that the command line names, within its limits."""
    _limit(*json.loads(sys.argv[1]))
    try:
        load(**json.loads(sys.argv[2]))
    except Exception as error:
        sys.stdout.buffer.write(str(error)[:_LONGEST].encode(errors="replace"))
        sys.exit(_LACKS_MEMORY if lacks_memory(error) else _REFUSED)


def lacks_memory(error: BaseException) -> bool:
    """Tell whether memory was refused; an engine says so by its words only.

    Examples
    --------
    >>> from skest.export.trial import lacks_memory
    >>> lacks_memory(MemoryError()), lacks_memory(RuntimeError("std::bad_alloc"))
    (True, True)
    """
    if isinstance(error, MemoryError) or any(text in str(error) for text in _TEXTS):
        return True
    return error.__cause__ is not None and lacks_memory(error.__cause__)


def _limit(seconds: int, memory: int) -> None:
    # Where the whole machine lacks memory this process is the one to go.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        import resource
    except ImportError:  # on Windows
        return
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (soft, hard))
