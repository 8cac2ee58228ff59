# SPDX-License-Identifier: Apache-2.0
"""The versions of models that a server has, kept up to date with their directories."""

import functools
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skest.checkpoints.versions import list_versions, version_number
from skest.export.manifest import MANIFEST
from skest.export.runtime import Model, load
from skest.export.trial import lacks_memory

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# Another try takes as much memory: meanwhile what is served needs some, too.
_SECONDS_FOR_MEMORY = 30.0
_LONGEST = 1000
_Files = tuple[tuple[str, int, int], ...]


class RequestError(Exception):
    """A request that gets no answer but why.

    Parameters
    ----------
    status : int
        The HTTP status code.
    message : str
        What was expected and what came. It may quote the request, so it is cut.
    headers : dict of str to str, optional
        Headers of the answer.
    """

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]} ..."
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class _Refusal(NamedTuple):
    """Which files were refused, None for any, and when they are tried again."""

    files: _Files | None
    until: float


class ModelVersions:
    """The newest versions of one model.

    A version is served once it was loaded, checked and gave the recorded answers. One
    that is refused, as a copy that is under way, is tried again when its files change.

    Parameters
    ----------
    path : str or path
        The directory of the versions, or one version.
    keep : int, default=2
        How many versions are served. The newest is served also if it was removed, until
        there is a newer one.
    load : callable, default=`skest.export.load`
        Loads a version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: int = 2,
        load: Callable[[Path], Model] = load,
    ) -> None:
        self._path = Path(path)
        self._keep = keep
        self._load = load
        # Newest first. Replaced as a whole: requests read it while it is refreshed.
        self.served: Mapping[int, Model] = {}
        self._refused: dict[int, _Refusal] = {}

    @property
    def refused(self) -> list[int]:
        """The versions that are there but can't be served."""
        return sorted(self._refused, reverse=True)

    def refresh(self) -> None:
        """Load versions that are new, and let go of old ones."""
        found = self._find()
        self._refused = {n: why for n, why in self._refused.items() if n in found}
        newest = list(self.served)[:1]
        usable: list[int] = []
        for number in sorted({*found, *newest}, reverse=True):
            if len(usable) == self._keep:
                break
            if number in self.served or self._try(number, found[number]):
                usable.append(number)
        there = [number for number in usable if number in found or number == usable[0]]
        for number in set(self.served) - set(there):
            _LOGGER.info("Version %d of %s is no longer served.", number, self._path)
        self.served = {number: self.served[number] for number in there}

    def _find(self) -> dict[int, Path]:
        if (self._path / MANIFEST).exists():
            return {_number(self._path): self._path}
        return {_number(path): path for path in list_versions(self._path)}

    def _try(self, number: int, path: Path) -> bool:
        files = _files_of(path)
        before = self._refused.get(number)
        known = before is not None and before.files == files is not None
        if before is not None and known and time.monotonic() < before.until:
            return False
        try:
            model = self._load(path)
        except ImportError:
            raise
        except Exception as error:
            refusal = _Refusal(files, math.inf)
            # What is no fault of the files may be over later.
            if lacks_memory(error):
                refusal = _Refusal(files, time.monotonic() + _SECONDS_FOR_MEMORY)
            elif isinstance(error, OSError):
                refusal = _Refusal(None, 0.0)
            if not known:
                _LOGGER.warning("Version %d is not served: %s", number, error)
            self._refused[number] = refusal
            return False
        self._refused.pop(number, None)
        # Served at once: older ones may take long to load.
        self.served = dict(sorted({**self.served, number: model}.items(), reverse=True))
        _LOGGER.info("Version %d of %s is served.", number, self._path)
        return True


def _number(path: Path) -> int:
    number = version_number(path.name)
    return 1 if number is None else number


def _files_of(path: Path) -> _Files | None:
    """Return what changes when a file does, None if it changes just now."""
    try:
        return tuple(
            (str(file), status.st_size, status.st_ctime_ns)
            for file, status in sorted((f, f.lstat()) for f in path.rglob("*"))
        )
    except OSError:
        return None


class Catalog:
    """The models of a server by name.

    Parameters
    ----------
    paths : dict of str to path
        For each model the directory of its versions, or one version.
    keep : int, default=2
        How many versions of each are served.
    num_threads : int, default=1
        Threads within one call of a model.
    **checks
        Further arguments of `skest.export.load`.

    Raises
    ------
    ValueError
        If a name could not stand in an address.
    FileNotFoundError
        If there is no such directory.
    """

    def __init__(
        self,
        paths: Mapping[str, str | os.PathLike[str]],
        keep: int = 2,
        num_threads: int = 1,
        **checks: Any,
    ) -> None:
        if keep < 1:
            raise ValueError(f"'keep' must be 1 or more; got {keep}.")
        for name, path in paths.items():
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"The name of a model must be of letters, digits, '_', '-' and '.'; "
                    f"got {name!r}. Give one by NAME=PATH."
                )
            if not Path(path).is_dir():
                raise FileNotFoundError(f"There is no directory {str(path)!r}.")
        load_version = functools.partial(load, num_threads=num_threads, **checks)
        self.models = {
            name: ModelVersions(path, keep, load_version)
            for name, path in paths.items()
        }
        self._closed = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether every model has a version, and the server is not stopping."""
        return not (self.closed or self.waiting)

    @property
    def waiting(self) -> list[str]:
        """The models that have no version yet."""
        return [name for name, model in self.models.items() if not model.served]

    @property
    def closed(self) -> bool:
        """Whether the server is stopping."""
        return self._closed.is_set()

    def close(self) -> None:
        """Stop watching; from now on the catalog is not ready."""
        self._closed.set()

    def refresh(self) -> None:
        """Look for new versions of all models."""
        for name, model in self.models.items():
            try:
                model.refresh()
            except OSError as error:
                # A directory that is out of reach for a while must not end the watch.
                _LOGGER.warning("No look for versions of %s: %s", name, error)

    def watch(self, seconds: float) -> None:
        """Look for new versions again and again, until the catalog is closed.

        Parameters
        ----------
        seconds : float
            From one look to the next.
        """
        while not self._closed.wait(seconds):
            self.refresh()

    def versions(self, name: str) -> ModelVersions:
        """Return the versions of a model.

        Raises
        ------
        RequestError
            404 if there is no such model.
        """
        if name not in self.models:
            raise RequestError(
                404, f"There is no model {name!r}; there are {sorted(self.models)}."
            )
        return self.models[name]

    def find(self, name: str, version: str | None) -> tuple[int, Model]:
        """Return a version of a model and its number, the newest unless one is named.

        Raises
        ------
        RequestError
            404 if there is no such model or version, 503 if none is loaded yet.
        """
        served = self.versions(name).served
        if version is None and not served:
            raise RequestError(
                503, f"No version of {name!r} is loaded.", {"Retry-After": "1"}
            )
        number = next(iter(served)) if version is None else int(version)
        if number not in served:
            raise RequestError(
                404,
                f"There is no version {number} of {name!r}; served are {list(served)}.",
            )
        return number, served[number]
