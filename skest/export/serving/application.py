# SPDX-License-Identifier: Apache-2.0
"""From the method, path and body of a request to its answer."""

import logging
import re
import threading
import time
import traceback
from dataclasses import dataclass, field

from skest.export.serving import open_inference, tf_rest
from skest.export.serving.calls import Call, Route, as_json
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits
from skest.export.serving.metrics import Metrics
from skest.export.serving.versions import Catalog

__all__ = ["Answer", "Application"]

_LOGGER = logging.getLogger(__name__)
_ROUTES = (*tf_rest.ROUTES, *open_inference.ROUTES)


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Application:
    """Answers requests; several threads may ask at once.

    Parameters
    ----------
    catalog : Catalog
        The models there are.
    limits : Limits
        What may be asked.
    """

    def __init__(self, catalog: Catalog, limits: Limits) -> None:
        self._catalog = catalog
        self._limits = limits
        self._metrics = Metrics()
        self._turn = threading.Lock()
        self._slots = threading.BoundedSemaphore(limits.max_running)

    def answer(self, method: str, path: str, body: bytes | bytearray) -> Answer:
        """Return the answer to a request.

        Parameters
        ----------
        method : str
            As ``GET`` or ``POST``.
        path : str
            Decoded, without a query.
        body : bytes or bytearray
            What came after the headers.
        """
        if (method, path) == ("GET", "/metrics"):
            text = {"Content-Type": "text/plain; version=0.0.4"}
            return Answer(200, self._metrics.text().encode(), text)
        start = time.perf_counter()
        answer = self._answer(method, path, body)
        self._metrics.count(answer.status, time.perf_counter() - start)
        return answer

    def refuse(self, error: RequestError) -> Answer:
        """Return the answer to what did not become a whole request."""
        self._metrics.count(error.status)
        return _refusal(error)

    def _answer(self, method: str, path: str, body: bytes | bytearray) -> Answer:
        try:
            route, found = _route(method, path)
            named = found.groupdict()
            call = Call(self._catalog, self._limits, named, body, self._turn)
            if route.method == "GET":  # Cheap; and health must be seen under load.
                return Answer(200, as_json(route.answer(call)))
            return self._run(route, call)
        except RequestError as error:
            return _refusal(error)
        except Exception as error:
            # Not its message, which may quote the request.
            _LOGGER.error(
                "%s failed: %s\n%s",
                method,
                type(error).__name__,
                "".join(traceback.format_tb(error.__traceback__)),
            )
            return _refusal(RequestError(500, "The server failed; its log says where."))

    def _run(self, route: Route, call: Call) -> Answer:
        if self._catalog.closed:
            raise RequestError(503, "The server is stopping.", {"Retry-After": "1"})
        if not self._slots.acquire(blocking=False):
            raise RequestError(503, "The server is busy.", {"Retry-After": "1"})
        try:
            return Answer(200, as_json(route.answer(call)))
        finally:
            self._slots.release()


def _refusal(error: RequestError) -> Answer:
    return Answer(error.status, as_json({"error": str(error)}), error.headers)


def _route(method: str, path: str) -> tuple[Route, re.Match[str]]:
    fitting = [(r, found) for r in _ROUTES if (found := r.pattern.fullmatch(path))]
    if not fitting:
        raise RequestError(
            404,
            "There is nothing at this path. Models are at /v1/models/NAME:predict and "
            "/v2/models/NAME/infer.",
        )
    for route, found in fitting:
        if route.method == method:
            return route, found
    allowed = ", ".join(route.method for route, _ in fitting)
    raise RequestError(
        405, f"This path takes {allowed}, not {method}.", {"Allow": allowed}
    )
