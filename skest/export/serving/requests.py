# SPDX-License-Identifier: Apache-2.0
"""A request as the protocols see it: what its address names, its document, its limits."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skest.export.manifest import without_duplicates
from skest.export.raw_values import Feature, columns_of
from skest.export.runtime import Model
from skest.export.serving.versions import Catalog, RequestError
from skest.export.trial import lacks_memory

MODEL_PATH = r"models/(?P<name>[^/:]+)"


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
    max_cells: int = 2**22
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
    """

    catalog: Catalog
    limits: Limits
    name: Any
    body: bytes

    def find(self) -> tuple[int, Model]:
        """Return the version of the model, and its number."""
        return self.catalog.find(self.name)

    def document(self) -> dict[str, Any]:
        """Return the JSON object in the body; raise RequestError (400) if it is none."""
        try:
            found = json.loads(
                # Of bytes, `json.loads` would take UTF-16 and UTF-32 as well.
                str(self.body, "utf-8"),
                object_pairs_hook=without_duplicates,
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
            feature = Feature(key, model.features[found["inputs"][key]["tensor"]])
            what = f"{key!r}, filled up to its longest list,"
            sizes[what] = n_rows * feature.row_size(cells)
        for key, output in found["outputs"].items():
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
    pattern: re.Pattern[str]
    answer: Callable[[Call], Any]


def signature_of(model: Model, name: Any) -> dict[str, Any]:
    """Return a signature of a model; raise RequestError (400) if there is none."""
    if not isinstance(name, str) or name not in model.signatures:
        raise RequestError(
            400,
            f"The model has no signature {name!r}; it has {list(model.signatures)}.",
        )
    return model.signatures[name]


def as_json(document: Any) -> bytes:
    """Return a document as JSON; raise RequestError (400) if a number is not finite."""
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
