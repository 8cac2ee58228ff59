# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made on, and with which versions."""

import datetime
import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["about", "commit", "machine", "versions"]

LIBRARIES = ("torch", "scikit-learn", "skorch", "numpy", "pandas")
ROOT = Path(__file__).parents[1]


def machine() -> str:
    """Return cores, memory and kind of the machine in words."""
    parts = [f"{os.cpu_count()} cores ({_processor()})"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        parts.append(f"{size:.0f} GiB")
    parts.append(f"{platform.system()} {platform.machine()}")
    return ", ".join(parts)


def _processor() -> str:
    """Return the name of the processor, or what Python knows of it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in pairs.items()}
    return named.get("model name") or platform.processor() or "unknown processor"


def versions() -> dict[str, str]:
    """Return those of Python and of the libraries that take part in this process."""
    found = {name: version(name) for name in LIBRARIES}
    return {"Python": platform.python_version(), **found}


def commit() -> str:
    """Return the commit that is checked out, with a plus if files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def about(
    module: str,
    arguments: Iterable[str],
    *,
    clock: str = "wall",
    busy: bool = False,
    missing: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what is to be known of a run of ``python -m module arguments``.

    `missing` says why contenders are not in it.
    """
    return {
        "command": shlex.join(["python", "-m", module, *arguments]),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "clock": clock,
        "busy": busy,
        "missing": dict(missing or {}),
    }
