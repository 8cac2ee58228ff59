# SPDX-License-Identifier: Apache-2.0
"""A request as the protocols see it: what its address names, and its document."""

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from skest.export.manifest import without_duplicates
from skest.export.memory import lacks_memory
from skest.export.raw_tables import columns_of
from skest.export.runtime import Model
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits
from skest.export.serving.request_sizes import answer_numbers, check_sizes
from skest.export.serving.versions import Catalog

__all__ = ["MODEL_PATH", "Call", "Route", "as_json", "signature_of"]

_MANY = 2**16
MODEL_PATH = r"models/(?P<name>[^/:]+)(/versions/(?P<version>[0-9]{1,18}))?"


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
    body : bytes or bytearray
        What came after the headers.
    turn : Lock
        Held by the one large body that is parsed at a time.
    """

    catalog: Catalog
    limits: Limits
    path: Mapping[str, Any]
    body: bytes | bytearray
    turn: threading.Lock

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
        values = sum(map(self.body.count, (b",", b"[", b"{")))
        if values > self.limits.max_values:
            raise RequestError(
                413,
                f"The JSON has {values} commas and opening brackets; at most "
                f"{self.limits.max_values} are taken. Send fewer rows.",
            )
        try:
            with self._in_turn() if values > _MANY else contextlib.nullcontext():
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

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Leave others half of the time: nothing else runs while JSON is parsed."""
        with self.turn:
            start = time.perf_counter()
            try:
                yield
            finally:
                time.sleep(time.perf_counter() - start)

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
        inputs = model.signatures[signature]["inputs"]
        try:
            columns = columns_of(table, list(inputs), model.parts)
            features = {key: model.features[inputs[key]["tensor"]] for key in columns}
            answer = answer_numbers(model.signatures, signature)
            check_sizes(columns, features, model.widths, self.limits, answer)
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
