# SPDX-License-Identifier: Apache-2.0
"""The models that a server has, each in its newest version, kept up to date."""

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from skest.core.files import list_versions, version_number
from skest.export.manifest import MANIFEST
from skest.export.runtime import Model

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LONGEST = 1000


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


class Served:
    """The newest version of a model that could be loaded, checked and tested.

    Parameters
    ----------
    path : str or path
        The directory of the versions, or one version.
    load : callable
        Loads a version.
    """

    def __init__(
        self, path: str | os.PathLike[str], load: Callable[[Path], Model]
    ) -> None:
        self._path = Path(path)
        self._load = load
        # Replaced as a whole: requests read it while it is refreshed.
        self.newest: tuple[int, Model] | None = None
        self.refused: dict[int, object] = {}

    def refresh(self) -> None:
        """Load the newest version, unless it is served already.

        One that is refused, as a copy that is under way, is tried again when its files
        change.
        """
        one = (self._path / MANIFEST).exists()
        paths = [self._path] if one else list_versions(self._path)
        found = {version_number(path.name) or 1: path for path in paths}
        self.refused = {n: files for n, files in self.refused.items() if n in found}
        for number in sorted(found, reverse=True):
            if self.newest and number <= self.newest[0]:
                return
            files = _files_of(found[number])
            if files is not None and self.refused.get(number) == files:
                continue
            try:
                model = self._load(found[number])
            except ImportError:
                raise
            except Exception as error:
                _LOGGER.warning("Version %d is not served: %s", number, error)
                # A disk that is out of reach is no fault of the files.
                self.refused[number] = None if isinstance(error, OSError) else files
                continue
            self.refused.pop(number, None)
            self.newest = number, model
            _LOGGER.info("Version %d of %s is served.", number, self._path)
            return


def _files_of(path: Path) -> object:
    """Return what changes when a file does, None if it changes just now."""
    try:
        return [
            (file, status.st_size, status.st_ctime_ns)
            for file, status in sorted((f, f.lstat()) for f in path.rglob("*"))
        ]
    except OSError:
        return None


class Catalog:
    """The models of a server by name.

    Parameters
    ----------
    paths : dict of str to path
        For each model the directory of its versions, or one version.
    load : callable
        Loads a version.

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
        load: Callable[[Path], Model],
    ) -> None:
        for name, path in paths.items():
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"The name of a model must be of letters, digits, '_', '-' and '.'; "
                    f"got {name!r}. Give one by NAME=PATH."
                )
            if not Path(path).is_dir():
                raise FileNotFoundError(f"There is no directory {str(path)!r}.")
        self.models = {name: Served(path, load) for name, path in paths.items()}
        self.closed = threading.Event()

    @property
    def waiting(self) -> list[str]:
        """The models that have no version yet."""
        return [name for name, model in self.models.items() if not model.newest]

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

    def served(self, name: str) -> Served:
        """Return what there is of a model; raise RequestError (404) if it is unknown."""
        if name not in self.models:
            raise RequestError(
                404, f"There is no model {name!r}; there are {sorted(self.models)}."
            )
        return self.models[name]

    def find(self, name: str) -> tuple[int, Model]:
        """Return the version of a model, and its number.

        Raises
        ------
        RequestError
            404 if there is no such model, 503 if none is loaded yet.
        """
        found = self.served(name).newest
        if found is None:
            raise RequestError(503, f"No version of {name!r} is loaded.")
        return found
