# SPDX-License-Identifier: Apache-2.0
"""The versions of models that a server has, kept up to date with their directories."""

import functools
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skest.checkpoints.versions import list_versions, version_number
from skest.export.manifest import MANIFEST
from skest.export.runtime import Model, load

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
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
    """

    def __init__(self, status: int, message: str) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]} ..."
        super().__init__(message)
        self.status = status


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
        # The files with which a version was refused; None if they are not to blame.
        self.refused: dict[int, _Files | None] = {}

    def refresh(self) -> None:
        """Load versions that are new, and let go of old ones."""
        found = self._find()
        self.refused = {n: files for n, files in self.refused.items() if n in found}
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
            return {version_number(self._path.name) or 1: self._path}
        return {version_number(p.name) or 1: p for p in list_versions(self._path)}

    def _try(self, number: int, path: Path) -> bool:
        files = _files_of(path)
        if files is not None and self.refused.get(number) == files:
            return False
        try:
            model = self._load(path)
        except ImportError:
            raise
        except Exception as error:
            _LOGGER.warning("Version %d is not served: %s", number, error)
            self.refused[number] = None if isinstance(error, OSError) else files
            return False
        self.refused.pop(number, None)
        # Served at once: older ones may take long to load.
        self.served = dict(sorted({**self.served, number: model}.items(), reverse=True))
        _LOGGER.info("Version %d of %s is served.", number, self._path)
        return True


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
    **checks
        Further arguments of `skest.export.load`.

    Attributes
    ----------
    closed : threading.Event
        Set when the server is stopping.

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
        load_version = functools.partial(load, **checks)
        self.models = {
            name: ModelVersions(path, keep, load_version)
            for name, path in paths.items()
        }
        self.closed = threading.Event()

    @property
    def waiting(self) -> list[str]:
        """The models that have no version yet."""
        return [name for name, model in self.models.items() if not model.served]

    @property
    def ready(self) -> bool:
        """Whether every model has a version, and the server is not stopping."""
        return not (self.closed.is_set() or self.waiting)

    def refresh(self) -> None:
        """Look for new versions of all models."""
        for name, model in self.models.items():
            try:
                model.refresh()
            except OSError as error:
                # A directory that is out of reach for a while must not end the watch.
                _LOGGER.warning("No look for versions of %s: %s", name, error)

    def watch(self, seconds: float) -> None:
        """Look for new versions every so many seconds, until the server stops."""
        while not self.closed.wait(seconds):
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
            raise RequestError(503, f"No version of {name!r} is loaded.")
        number = next(iter(served)) if version is None else int(version)
        if number not in served:
            raise RequestError(
                404,
                f"There is no version {number} of {name!r}; served are {list(served)}.",
            )
        return number, served[number]
