# SPDX-License-Identifier: Apache-2.0
"""Files and directories that are complete whenever they can be seen."""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_HIDDEN = ".tmp-"
_SECONDS_TO_STAY = 86400.0


@contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Say in an error of the system what could not be done, and what is to be done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        text = f"{what}: {reason}. {advice}"
        raise OSError(
            *[text] if error.errno is None else [error.errno, text]
        ) from error


def write_directory(
    parent: Path, write: Callable[[Path], object], choose_name: Callable[[], str]
) -> Path:
    """Write a directory that appears when it is complete.

    Parameters
    ----------
    parent : Path
        Where it appears.
    write : callable
        ``write(directory)`` fills an empty directory. If it raises, nothing appears.
    choose_name : callable
        Returns a name that is free; it is asked again if somebody was faster.

    Returns
    -------
    Path
        The directory.
    """
    _remove_leftovers(parent)
    hidden = _hidden(parent)
    hidden.mkdir()
    try:
        write(hidden)
        for path in (*hidden.rglob("*"), hidden):
            flush(path)
        path = _rename(hidden, choose_name)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    flush(parent)
    return path


def _rename(directory: Path, choose_name: Callable[[], str]) -> Path:
    while True:
        path = directory.with_name(choose_name())
        try:
            return directory.rename(path)
        except OSError:
            if not path.exists():
                raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that its old or its new content is there, never a part."""
    _remove_leftovers(path.parent)
    hidden = _hidden(path.parent)
    try:
        with hidden.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    flush(path.parent)


def remove_directory(path: Path) -> None:
    """Delete a directory; it is out of sight before the first file goes."""
    hidden = _hidden(path.parent)
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def flush(path: Path) -> None:
    """Make a file's content, or a directory's entries, survive a power failure."""
    if path.is_dir() and os.name == "nt":  # Windows can't open a directory
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(parent: Path) -> Path:
    return parent / f"{_HIDDEN}{uuid.uuid4().hex}"


def _remove_leftovers(parent: Path) -> None:
    """Remove what killed processes left; what others are writing is younger."""
    for path in parent.glob(f"{_HIDDEN}*"):
        try:
            if time.time() - path.lstat().st_mtime < _SECONDS_TO_STAY:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        except OSError:  # another process removes it, too, or nobody may
            continue
