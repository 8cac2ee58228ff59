# SPDX-License-Identifier: Apache-2.0
"""Files and directories that are complete whenever they can be seen.

Model servers watch numbered versions: directories ``<base>/<unix seconds>``. The number of
one is higher than those before it, also if the clock was set back.
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# In the same directory, hence on the same file system: a rename is atomic there only.
_HIDDEN = ".tmp-"
# No save takes so long, wherever it is.
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


def check_is_local(path: str | os.PathLike[str], name: str) -> None:
    """Refuse addresses, which would become folders called "gs:".

    Examples
    --------
    >>> check_is_local("s3://bucket/model", "'model_dir'")
    Traceback (most recent call last):
        ...
    ValueError: 'model_dir' must be a path on this machine; got 's3://bucket/model'. \
Mount what is elsewhere, or copy it.
    """
    if re.match(r"[A-Za-z][\w+.-]+://", os.fspath(path)):
        raise ValueError(
            f"{name} must be a path on this machine; got {os.fspath(path)!r}. Mount what "
            "is elsewhere, or copy it."
        )


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
        # A name must not survive a power failure without what is behind it.
        for path in (*hidden.rglob("*"), hidden):
            flush(path)
        path = _rename(hidden, choose_name)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    # A rename is atomic, but lasts only when its directory is flushed.
    flush(parent)
    return path


def _rename(directory: Path, choose_name: Callable[[], str]) -> Path:
    while True:
        path = directory.with_name(choose_name())
        try:
            return directory.rename(path)
        except OSError:
            # Else another process has taken this name, and the next one will do.
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
            # Without it, a power failure may leave the name with an empty file behind
            # it.
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
        # Half a checkpoint under its own name would be taken for one.
        path.rename(hidden)
    except FileNotFoundError:
        return
    # What cannot be deleted now goes as a leftover later.
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
    >>> from skest.core.files import list_versions, write_version
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
        # The highest, also of two in one second or a clock that was set back.
        return str(max(int(clock()), newest + 1))

    return write_directory(base, write, next_number)


def list_versions(base: str | os.PathLike[str]) -> list[Path]:
    """Return the directories of all versions, oldest first."""
    base = Path(base)
    if not base.is_dir():
        return []
    # As numbers: TensorFlow Serving takes the highest for the newest, and 10 follows 9.
    numbered = [(version_number(path.name), path) for path in base.iterdir()]
    versions = [(n, path) for n, path in numbered if n is not None and path.is_dir()]
    return [path for _, path in sorted(versions)]


def version_number(name: str) -> int | None:
    """Return the number that a directory is named by; None if it is no version.

    Examples
    --------
    >>> from skest.core.files import version_number
    >>> [version_number(name) for name in ("1700000000", "007", "draft")]
    [1700000000, None, None]
    """
    return int(name) if _NUMBER.fullmatch(name) else None


def remove_old_versions(base: str | os.PathLike[str], keep: int) -> None:
    """Delete all versions but the newest `keep`."""
    for path in list_versions(base)[:-keep]:
        remove_directory(path)
