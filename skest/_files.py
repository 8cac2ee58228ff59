# SPDX-License-Identifier: Apache-2.0
"""Files and directories that are complete whenever they can be seen.

What is new is written under another name, flushed and then renamed; what goes is renamed
before its first file is deleted. A process may be killed at any moment in between.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

__all__ = [
    "explained",
    "flush",
    "flush_tree",
    "flushed_meanwhile",
    "published_as",
    "remove",
    "remove_directory",
    "remove_leftovers",
    "write_file",
]


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


@contextmanager
def published_as(target: Path) -> Iterator[Path]:
    """Give a temporary directory; rename it to `target` when it is complete."""
    unique = uuid.uuid4().hex
    temporary = target.with_name(f".tmp-{target.name}-{unique}")
    retired = target.with_name(f".del-{target.name}-{unique}")
    temporary.mkdir()
    try:
        yield temporary
        flush(temporary)
        if target.exists():
            target.rename(retired)
        temporary.rename(target)
        flush(target.parent)
    except BaseException:
        if retired.exists() and not target.exists():
            retired.rename(target)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that its old or its new content is there, never a part."""
    temporary = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Make a file's content, or a directory's entries, survive a power failure."""
    if path.is_dir() and os.name == "nt":  # Windows can't open a directory
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(directory: Path) -> None:
    """Flush a directory and everything in it."""
    for path in directory.rglob("*"):
        flush(path)
    flush(directory)


@contextmanager
def flushed_meanwhile(directory: Path) -> Iterator[None]:
    """Flush what is in a directory while the block runs: `flush_tree` has little left.

    Nothing is flushed here where no thread can begin, as at the end of the interpreter.
    """
    errors: list[OSError] = []

    def flushing() -> None:
        try:
            flush_tree(directory)
        except OSError as error:  # a second call would not be told of it
            errors.append(error)

    thread = Thread(target=flushing)
    with suppress(RuntimeError):
        thread.start()
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()
    if errors:
        raise errors[0]


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of writing or deleting `path`.

    No other process may be writing it.
    """
    for left in path.parent.glob(f".tmp-{path.name}-*"):
        remove(left)


def remove(path: Path) -> None:
    """Delete a file, or a directory as far as that is possible, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Delete a directory; it is out of sight before the first file goes."""
    gone = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)
