# SPDX-License-Identifier: Apache-2.0
"""Numbered versions in a directory, as model servers watch them.

A version is a directory ``<base>/<unix seconds>``. It appears complete, by one rename,
and its number is higher than those before it, also if the clock was set back.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from skest.core.files import remove_directory, write_directory

# One way to write each number: Python also reads "007" and the digits of other scripts.
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


def write_version(
    base: str | os.PathLike[str],
    write: Callable[[Path], None],
    clock: Callable[[], float] = time.time,
) -> Path:
    """Write a new version.

    Parameters
    ----------
    base : str or path
        Directory of the versions; it is made if need be.
    write : callable
        ``write(directory)`` fills an empty directory. If it raises, there is no version.
    clock : callable, default=time.time
        Gives the time in seconds.

    Returns
    -------
    Path
        The directory of the version.

    Examples
    --------
    >>> import tempfile
    >>> from skest.checkpoints.versions import list_versions, write_version
    >>> with tempfile.TemporaryDirectory() as base:
    ...     for text in ("one", "two"):
    ...         _ = write_version(
    ...             base, lambda d: (d / "a").write_text(text), lambda: 1700000000
    ...         )
    ...     print([path.name for path in list_versions(base)])
    ['1700000000', '1700000001']
    """
    base = Path(base)
    base.mkdir(parents=True, exist_ok=True)

    def next_number() -> str:
        newest = max((int(path.name) for path in list_versions(base)), default=0)
        return str(max(int(clock()), newest + 1))

    return write_directory(base, write, next_number)


def list_versions(base: str | os.PathLike[str]) -> list[Path]:
    """Return the directories of all versions, oldest first."""
    base = Path(base)
    if not base.is_dir():
        return []
    numbered = [(version_number(path.name), path) for path in base.iterdir()]
    versions = [(n, path) for n, path in numbered if n is not None and path.is_dir()]
    return [path for _, path in sorted(versions)]


def version_number(name: str) -> int | None:
    """Return the number that a directory is named by; None if it is no version.

    Examples
    --------
    >>> from skest.checkpoints.versions import version_number
    >>> [version_number(name) for name in ("1700000000", "007", "draft")]
    [1700000000, None, None]
    """
    return int(name) if _NUMBER.fullmatch(name) else None


def remove_old_versions(base: str | os.PathLike[str], keep: int) -> None:
    """Delete all versions but the newest `keep`."""
    for path in list_versions(base)[:-keep]:
        remove_directory(path)
