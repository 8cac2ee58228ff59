# SPDX-License-Identifier: Apache-2.0
"""A version is loaded in a process of its own first, which may die of it.

Engines are written in C++: a hostile graph can end the process that loads it, or take all
the memory and time that there is.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skest.exceptions import ArtifactError
from skest.export.artifact import Artifact

_CHILD = "from skest.export import runtime, trial; trial.run_in_child(runtime.load)"
# A process that waits for a slow disk takes no time of the processor.
_WAITING = 10
# What is read is copied once, unpacked once, and packed for the processor.
_PER_BYTE = 4
_REFUSED, _LACKS_MEMORY = 3, 4
_LONGEST = 1000
_TEXTS = ("Failed to allocate memory", "bad_alloc", "bad allocation")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a version may take, tried in a process of its own before it is loaded here.

    There it is loaded and asked its recorded rows, by one thread. Starting the process
    takes some tenths of a second. Where the system has no such limits (memory on macOS,
    both on Windows), only the time on the wall is limited, to ten times `seconds`.

    Attributes
    ----------
    seconds : float, default=60.0
        Seconds of the processor.
    memory : int, default=2 GiB
        Bytes of memory, besides four times those of the version's files.

    Examples
    --------
    >>> from skest.export import Trial
    >>> Trial(seconds=10).memory
    2147483648
    """

    seconds: float = 60.0
    memory: int = 2**31

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("memory", self.memory)):
            if not 0 < value < math.inf:
                raise ValueError(
                    f"{name!r} of a Trial must be positive; got {value!r}."
                )

    def run(self, artifact: Artifact, verify: bool, max_bytes: int) -> None:
        """Try a version; return if it may be loaded.

        Parameters
        ----------
        artifact : Artifact
            The version. The process reads it again, as the same digest tells.
        verify, max_bytes
            See `skest.export.load`.

        Raises
        ------
        ArtifactError
            If the version is refused there, or takes too much, or ends the process.
        """
        size = sum(entry["size"] for entry in artifact.manifest["files"].values())
        memory = self.memory + _PER_BYTE * size
        task = {
            "seconds": math.ceil(self.seconds),
            "memory": memory,
            "path": str(artifact.path),
            "trusted_manifest_sha256": artifact.manifest_sha256,
            "verify": verify,
            "max_bytes": max_bytes,
        }
        # It finds what this process finds; threads would each take memory for nothing.
        there = {"PYTHONPATH": os.pathsep.join(sys.path)}
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        more = "if you trust it, allow it more (`skest.export.Trial`)"
        too_slow = f"takes more than {self.seconds:g} seconds; {more}"
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _CHILD, json.dumps(task)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **there, **one},
                timeout=_WAITING * self.seconds,
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
            what = f"ends the process with {_name(status)}"
            if status == _LACKS_MEMORY:
                what = f"takes more than {memory} bytes of memory; {more}"
            elif status == -getattr(signal, "SIGXCPU", 0):
                what = too_slow
        raise ArtifactError(
            f"{str(artifact.path)!r} is refused: tried in a process of its own, it {what}."
        )


def run_in_child(load: Callable[..., Any]) -> None:
    """Load the version that the command line names, within its limits."""
    task = json.loads(sys.argv[1])
    _limit(task.pop("seconds"), task.pop("memory"))
    try:
        load(**task)
    except Exception as error:
        sys.stdout.buffer.write(str(error)[:_LONGEST].encode(errors="replace"))
        sys.exit(_LACKS_MEMORY if lacks_memory(error) else _REFUSED)


def lacks_memory(error: BaseException) -> bool:
    """Tell whether memory was refused; an engine says so by its words only.

    Parameters
    ----------
    error : Exception
        What came of it, or of which it is the cause.

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


def _name(status: int) -> str:
    named = -status in signal.valid_signals()
    return signal.Signals(-status).name if named else f"the status {status}"
