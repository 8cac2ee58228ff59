# SPDX-License-Identifier: Apache-2.0
"""A request as the protocols see it: what its address names, its document, its limits."""

import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skest.core.files import version_number
from skest.export.artifact import versions_at, without_duplicates
from skest.export.raw_values import Feature, columns_of
from skest.export.runtime import Model, lacks_memory

_LOGGER = logging.getLogger(__name__)
# No colon, which stands before the method in an address, and no slash.
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


class Refusal(NamedTuple):
    """Why a version is not served, and its files then; None tries it at every look."""

    files: object
    reason: str


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
        self.refused: dict[int, Refusal] = {}

    def refresh(self) -> None:
        """Load the newest version, unless it is served already.

        One that is refused, as a copy that is under way, is tried again when its files
        change.
        """
        # One that is served alone may have any name; clients are told a number.
        found = {version_number(p.name) or 1: p for p in versions_at(self._path)}
        self.refused = {n: why for n, why in self.refused.items() if n in found}
        # The first that loads is served. Until one does, the version before goes on.
        for number in sorted(found, reverse=True):
            # It goes forward only: who deletes a version does not take back what is
            # served.
            if self.newest and number <= self.newest[0]:
                return
            files = _files_of(found[number])
            before = self.refused.get(number)
            if before is not None and before.files == files is not None:
                continue
            try:
                model = self._load(found[number])
            # No version will load then: the server need not start.
            except ImportError:
                raise
            except Exception as error:
                _LOGGER.warning("Version %d is not served: %s", number, error)
                # A disk that is out of reach is no fault of the files.
                kept = None if isinstance(error, OSError) else files
                self.refused[number] = Refusal(kept, str(error))
                continue
            self.refused.pop(number, None)
            # One assignment: a request sees the old pair or the new one.
            self.newest = number, model
            _LOGGER.info("Version %d of %s is served.", number, self._path)
            return


def _files_of(path: Path) -> object:
    """Return what changes when a file does, None if it changes just now."""
    try:
        return [
            # Not the time of modification, which copies keep (rsync -a, cp -p).
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
        self, paths: Mapping[str, str | os.PathLike[str]], load: Callable[[Path], Model]
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
    def refused(self) -> dict[str, str]:
        """Of models that have versions, but none to serve, why the newest is refused."""
        return {
            name: model.refused[max(model.refused)].reason
            for name in self.waiting
            if (model := self.models[name]).refused
        }

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


MODEL_PATH = r"models/(?P<name>[^/:]+)"
VERSION_PATH = rf"{MODEL_PATH}(/versions/(?P<version>\d+))?"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes; whatever is more is refused.

    Attributes
    ----------
    max_request_bytes : int, default=8 MiB
        The body of a request (else 413). Parsed, JSON takes up to 25 times its memory.
    max_rows : int, default=10000
        Rows of a request (else 413).
    max_cells : int, default=4194304
        Values of a feature once lists in cells are filled up to the longest, each number
        of a vector counted, and values of the answer (else 413): one long list among many
        short ones, and answers of many classes, need far more memory than their request.
    max_running : int, default=64
        Requests that are worked on at once (else 503). Health is always answered.
    timeout : float, default=10.0
        Seconds for which a connection may be silent; then it is closed.

    Examples
    --------
    >>> from skest.export.serving.requests import Limits
    >>> Limits(max_rows=100).max_rows
    100
    """

    max_request_bytes: int = 8 * 2**20
    max_rows: int = 10_000
    # 32 MiB of float64 for a feature, and for an answer.
    max_cells: int = 2**22
    # Each is a thread, with its request and its answer in memory.
    max_running: int = 64
    timeout: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name!r} must be positive; got {value!r}.")


@dataclass(frozen=True)
class Call:
    """A request to one of the protocols.

    Attributes
    ----------
    catalog : Catalog
        The models there are.
    limits : Limits
        What may be asked.
    name : str or None
        The model that the address names.
    body : bytes
        What came after the headers.
    version : str or None
        Number of the version that the address names.
    """

    catalog: Catalog
    limits: Limits
    name: Any
    body: bytes
    version: str | None = None

    def find(self) -> tuple[int, Model]:
        """Return the version of the model, and its number.

        Raises
        ------
        RequestError
            404 if there is none such, 503 if none is loaded yet.
        """
        found = self.catalog.served(self.name).newest
        if found is None:
            # Not 404: the model is known, and a version may be on its way.
            raise RequestError(503, f"No version of {self.name!r} is loaded.")
        number, model = found
        if self.version not in (None, str(number)):
            raise RequestError(
                404,
                f"Version {self.version} of {self.name!r} is not served; {number} is.",
            )
        return number, model

    def document(self) -> dict[str, Any]:
        """Return the JSON object in the body; raise RequestError (400) if it is none."""
        try:
            found = json.loads(
                # Of bytes, `json.loads` would take UTF-16 and UTF-32 as well.
                str(self.body, "utf-8"),
                object_pairs_hook=without_duplicates,
                parse_constant=_no_number,
                # Python reads 1e999 as infinity.
                parse_float=_finite,
            )
        except RecursionError:
            raise RequestError(400, "The JSON is nested too deeply.") from None
        except ValueError as error:
            raise RequestError(400, f"The body must be JSON: {error}") from None
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise RequestError(400, f"The body must be a JSON object; got a {kind}.")
        return found

    def signature(self, model: Model, name: Any) -> dict[str, Any]:
        """Return a signature of a model; raise RequestError (400) if there is none."""
        if not isinstance(name, str) or name not in model.signatures:
            raise RequestError(
                400,
                f"The model has no signature {name!r}; it has {list(model.signatures)}.",
            )
        return model.signatures[name]

    def run(self, model: Model, table: Any, signature: str) -> dict[str, NDArray[Any]]:
        """Run a model on rows or columns, within the limits.

        Raises
        ------
        RequestError
            413 if there is too much, 503 if memory does not suffice, 400 if it is not
            what the model takes.
        """
        try:
            columns = self._small_enough(model, table, signature)
            return model.run(columns, signature)
        except RecursionError:
            raise RequestError(400, "The values are nested too deeply.") from None
        # What the model says of its features is meant for whoever asked.
        except (ValueError, TypeError, OverflowError) as error:
            raise RequestError(400, str(error)) from None
        except Exception as error:
            if not lacks_memory(error):
                raise
            raise RequestError(
                503,
                "The memory does not suffice for this request. Send fewer rows, or "
                "shorter lists.",
            ) from None

    def _small_enough(self, model: Model, table: Any, signature: str) -> dict[str, Any]:
        """Return the inputs; refuse a request that is small and would become large."""
        found = model.signatures[signature]
        # Before anything is filled up: that is when a small request becomes large.
        columns = columns_of(table, list(found["inputs"]), model.parts)
        # What is no list of rows, the model refuses.
        there = {k: c for k, c in columns.items() if isinstance(c, list | np.ndarray)}
        n_rows, most = max(map(len, there.values()), default=0), self.limits.max_rows
        if n_rows > most:
            raise RequestError(
                413, f"There are {n_rows} rows; at most {most} are taken."
            )
        sizes = {}
        for key, cells in there.items():
            # Sizes before values: a list of 10,000 numbers beside 9,999 short ones
            # fills 10**8 cells.
            feature = Feature(key, model.features[found["inputs"][key]["tensor"]])
            what = f"{key!r}, filled up to its longest list,"
            sizes[what] = n_rows * feature.row_size(cells)
        for key, output in found["outputs"].items():
            # What the graph leaves open is not known before it has run.
            n_values = math.prod(size or 1 for size in output["shape"][1:])
            sizes[f"The answer {key!r}"] = n_rows * n_values
        for what, size in sizes.items():
            if size > self.limits.max_cells:
                raise RequestError(
                    413,
                    f"{what} would have {size} values; at most {self.limits.max_cells} "
                    "are taken. Send fewer rows, or shorter lists.",
                )
        return columns


class Route(NamedTuple):
    """What answers the requests whose path fits a pattern."""

    method: str
    pattern: str
    answer: Callable[[Call], Any]


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON; write null where a number is missing")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is no number of 64 bits")
    return number
