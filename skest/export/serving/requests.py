# SPDX-License-Identifier: Apache-2.0
"""A request as the protocols see it: what its address names, its document, its limits."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skest.export.manifest import without_duplicates
from skest.export.raw_values import cell_lengths, columns_of, values_in_item
from skest.export.runtime import Model
from skest.export.serving.versions import Catalog, RequestError
from skest.export.trial import lacks_memory

MODEL_PATH = r"models/(?P<name>[^/:]+)(/versions/(?P<version>[0-9]{1,18}))?"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes; whatever is more is refused.

    Attributes
    ----------
    max_request_bytes : int, default=8 MiB
        The body of a request (else 413).
    max_values : int, default=1048576
        Values in the JSON of a request, as commas and opening brackets are counted before
        it is parsed (else 413).
    max_rows : int, default=10000
        Rows of a request (else 413).
    max_cells : int, default=4194304
        Values of a feature once lists in cells are filled up to the longest, each number
        of a vector counted; of a crossed column; and of the answer (else 413). One long
        list among many short ones, two long lists that are crossed, and answers of many
        classes need far more memory than their request.
    max_running : int, default=64
        Requests that are worked on at once (else 503). Health is always answered.
    max_connections : int, default=512
        Open connections. Another one takes the place of the one that has waited longest
        for its client.
    timeout : float, default=10.0
        Seconds in which a request has to arrive, in which an answer has to be taken, and
        for which a connection may idle; then it is closed.

    Examples
    --------
    >>> from skest.export.serving.requests import Limits
    >>> Limits(max_rows=100).max_rows
    100
    """

    max_request_bytes: int = 8 * 2**20
    max_values: int = 2**20
    max_rows: int = 10_000
    max_cells: int = 2**22
    max_running: int = 64
    max_connections: int = 512
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
    path : dict of str to (str or None)
        The named parts of the address.
    body : bytes
        What came after the headers.
    """

    catalog: Catalog
    limits: Limits
    path: Mapping[str, Any]
    body: bytes

    def find(self) -> tuple[int, Model]:
        """Return the version that the address names, and its number."""
        return self.catalog.find(self.path["name"], self.path.get("version"))

    def document(
        self, of_pairs: Callable[[list[tuple[str, Any]]], Any] = without_duplicates
    ) -> dict[str, Any]:
        """Return the JSON object in the body.

        Parameters
        ----------
        of_pairs : callable
            Makes a value of the names and values of an object.

        Raises
        ------
        RequestError
            400 if it is none, 413 if it has too many values.
        """
        # Nobody else is answered while JSON is parsed, and it takes 25 times its memory.
        values = sum(map(self.body.count, (b",", b"[", b"{")))
        if values > self.limits.max_values:
            raise RequestError(
                413,
                f"The JSON has {values} commas and opening brackets; at most "
                f"{self.limits.max_values} are taken. Send fewer rows.",
            )
        try:
            found = json.loads(
                str(self.body, "utf-8"),
                object_pairs_hook=of_pairs,
                parse_constant=_no_number,
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

    def run(self, model: Model, table: Any, signature: str) -> dict[str, NDArray[Any]]:
        """Run a model on rows or columns, within the limits.

        Parameters
        ----------
        model : Model
            What `find` returned.
        table : dict of columns, or list of dicts
            Raw features.
        signature : str
            A signature that the model has.

        Returns
        -------
        dict of str to ndarray
            The signature's outputs.

        Raises
        ------
        RequestError
            413 if there is too much, 503 if memory does not suffice, 400 if it is not
            what the model takes.
        """
        found = model.signatures[signature]
        try:
            columns = columns_of(table, list(found["inputs"]), model.parts)
            cells = {found["inputs"][key]["tensor"]: c for key, c in columns.items()}
            self._check_sizes(model.features, cells, found["outputs"])
            return model.run(columns, signature)
        except RecursionError:
            raise RequestError(400, "The values are nested too deeply.") from None
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

    def _check_sizes(
        self, features: Mapping[str, Any], cells: Mapping[str, Any], outputs: Any
    ) -> None:
        """Refuse a request that is small and would become large."""
        # What is no list of rows, the model refuses.
        there = {n: c for n, c in cells.items() if isinstance(c, list | np.ndarray)}
        n_rows = max(map(len, there.values()), default=0)
        if n_rows > self.limits.max_rows:
            raise RequestError(
                413,
                f"There are {n_rows} rows; at most {self.limits.max_rows} are taken.",
            )
        longest = {}
        for name, values in there.items():
            feature = features[name]
            longest[name] = 1
            if None in feature["shape"][1:]:
                longest[name] = int(cell_lengths(values, feature).max(initial=0))
                size = n_rows * longest[name] * values_in_item(feature)
                self._check_cells(f"{name!r}, filled up to its longest list,", size)
        for crossed in (c for n in there for c in features[n].get("crossed", ())):
            size = n_rows * math.prod(longest.get(name, 1) for name in crossed)
            self._check_cells(f"{crossed}, which are crossed,", size)
        for name, output in outputs.items():
            size = n_rows * math.prod(size or 1 for size in output["shape"][1:])
            self._check_cells(f"The answer {name!r}", size)

    def _check_cells(self, what: str, size: int) -> None:
        if size > self.limits.max_cells:
            raise RequestError(
                413,
                f"{what} would have {size} values; at most {self.limits.max_cells} are "
                "taken. Send fewer rows, or shorter lists.",
            )


class Route(NamedTuple):
    """What answers the requests whose path fits a pattern."""

    method: str
    pattern: re.Pattern[str]
    answer: Callable[[Call], Any]


def signature_of(model: Model, name: Any) -> dict[str, Any]:
    """Return a signature of a model.

    Raises
    ------
    RequestError
        400 if there is none of that name.
    """
    if not isinstance(name, str) or name not in model.signatures:
        raise RequestError(
            400,
            f"The model has no signature {name!r}; it has {list(model.signatures)}.",
        )
    return model.signatures[name]


def as_json(document: Any) -> bytes:
    """Return a document as JSON.

    Raises
    ------
    RequestError
        400 if a number in it is not finite.
    """
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise RequestError(
            400,
            "The model gives no finite number for these values. Are some very large?",
        ) from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON; write null where a number is missing")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is no number of 64 bits")
    return number
