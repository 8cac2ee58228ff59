# SPDX-License-Identifier: Apache-2.0
"""A small server of exported models, on ``http.server`` of the standard library.

At ``/`` is a page with a form for each model, to ask it in a browser.
"""

import contextlib
import functools
import http.server
import json
import logging
import os
import re
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from skest.core.files import explained
from skest.export.runtime import Model, load
from skest.export.serving import open_inference, tf_rest
from skest.export.serving.requests import Call, Catalog, Limits, RequestError, Route

_LOGGER = logging.getLogger(__name__)
_ROUTES = (*tf_rest.ROUTES, *open_inference.ROUTES)
_PAGE_PATH = "/"
_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    # Names of models and columns are data: they can load nothing from elsewhere.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'",
}


class ModelServer:
    """Serves exported models by HTTP.

    Two protocols are spoken: that of TensorFlow Serving below ``/v1``, and the Open
    Inference Protocol below ``/v2``; at ``/`` a browser finds a form for each model. The
    newest version is served as soon as it appears. It has no encryption and asks nobody
    who they are: put a proxy in front of it where that matters, and the ONNX file into
    Triton or KServe where there is much to answer.

    Parameters
    ----------
    models : dict of str to path
        For each model the directory of its versions, or one version.
    host : str, default="127.0.0.1"
        The address to listen at; ``"0.0.0.0"`` is every one of this machine.
    port : int, default=8501
        The port to listen at; 0 takes a free one.
    limits : Limits, optional
        What is taken from clients.
    poll_seconds : float, default=1.0
        Seconds from one look for new versions to the next.
    num_threads : int, default=1
        Threads within one call of a model.
    trusted_manifest_sha256 : str or collection of str, optional
        Digests of the versions that may be served, see `skest.export.load`; others that
        appear in the directories are refused.
    trial : bool, default=True
        Load a new version in a process of its own first, see `skest.export.load`: one
        that would end this process, or takes too much, is not served.

    Raises
    ------
    FileNotFoundError
        If there is no such directory.
    ValueError
        If a name could not stand in an address, or there is no such port.
    OSError
        If the address is taken.

    Examples
    --------
    A model is ready when there is a version of it.

    >>> import tempfile
    >>> from skest.export.serving.server import ModelServer
    >>> with tempfile.TemporaryDirectory() as base:
    ...     with ModelServer({"census": base}, port=0) as server:
    ...         server.ready
    False
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str]],
        *,
        host: str = "127.0.0.1",
        port: int = 8501,
        limits: Limits | None = None,
        poll_seconds: float = 1.0,
        num_threads: int = 1,
        trusted_manifest_sha256: str | Collection[str] | None = None,
        trial: bool = True,
    ) -> None:
        if not poll_seconds > 0:
            raise ValueError(f"'poll_seconds' must be positive; got {poll_seconds!r}.")
        if not 0 <= port <= 65535:
            raise ValueError(f"'port' must be from 0 to 65535; got {port!r}.")
        load_version = functools.partial(
            load,
            num_threads=num_threads,
            trusted_manifest_sha256=trusted_manifest_sha256,
            trial=trial,
        )
        self._catalog = Catalog(models, load_version)
        with explained(
            f"There can be no server at {host}:{port}", "Choose another port or host."
        ):
            self._listener = _Listener((host, port), self._catalog, limits or Limits())
        self._poll_seconds = poll_seconds
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """Where it listens, as ``http://127.0.0.1:8501``."""
        host, port = map(str, self._listener.server_address[:2])
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def ready(self) -> bool:
        """Whether every model has a version, and the server is not stopping."""
        return self._catalog.ready

    @property
    def refused(self) -> dict[str, str]:
        """Of models that have versions, but none to serve, why the newest is refused."""
        return self._catalog.refused

    def start(self) -> Self:
        """Listen, and load the models; return when they are loaded.

        Raises
        ------
        ImportError
            If ``onnxruntime`` is not installed.
        """
        # Health is answered from the start: large models take a while.
        # By default `serve_forever` looks every half second whether it shall end.
        self._run("skest-listen", self._listener.serve_forever, 0.05)
        try:
            self._catalog.refresh()
        except BaseException:
            self.stop()
            raise
        for name in set(self._catalog.waiting) - set(self.refused):
            _LOGGER.warning(
                "The directory of %s has no version to be served yet, a folder that "
                "`skest export MODEL -o DIRECTORY` or estimator.export(directory) writes; "
                "it is looked through every %g s.",
                name,
                self._poll_seconds,
            )
        self._run("skest-watch", self._catalog.watch, self._poll_seconds)
        return self

    def _run(self, name: str, target: Callable[[float], None], seconds: float) -> None:
        thread = threading.Thread(
            target=target, args=(seconds,), name=name, daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def stop(self, grace: float = 10.0) -> bool:
        """Stop: refuse what comes, finish what runs.

        Parameters
        ----------
        grace : float, default=10.0
            Seconds that running requests may take at most.

        Returns
        -------
        bool
            Whether all of them were answered.
        """
        # From here on requests are refused, so that all slots come free one by one.
        self._catalog.closed.set()
        finished = self._listener.finished(grace)
        # It waits for `serve_forever` to end, which has not begun without a thread.
        if self._threads:
            self._listener.shutdown()
        self._listener.server_close()
        for thread in self._threads:
            thread.join(grace)
        return finished

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


class _Listener(http.server.ThreadingHTTPServer):
    """Accepts connections, each of which has a thread."""

    # The 5 of socketserver turn away clients that connect at the same time.
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], catalog: Catalog, limits: Limits
    ) -> None:
        # http.server itself takes addresses of IPv4 only.
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.catalog = catalog
        self.limits = limits
        # Not a queue: who waits for long is answered when nobody listens any more.
        self.slots = threading.Semaphore(limits.max_running)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not that of http.server, which asks for the name of the machine.
        socketserver.TCPServer.server_bind(self)

    def finished(self, seconds: float) -> bool:
        """Wait until no request is worked on; return whether it is so."""
        deadline = time.monotonic() + seconds
        return all(
            self.slots.acquire(timeout=max(0.0, deadline - time.monotonic()))
            for _ in range(self.limits.max_running)
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOGGER.debug("A connection broke.", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers the requests of a connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "skest"
    # Which Python it is, and so which defects it has, is nobody's business.
    sys_version = ""
    # Headers and body are two writes; the second would wait for the receipt of the
    # first, up to 40 ms.
    disable_nagle_algorithm = True
    default_request_version = "HTTP/1.1"  # the answer to anything has a status
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.timeout)

    def _answer(self) -> None:
        start = time.perf_counter()
        path = unquote(self.path.partition("?")[0])
        status, answer = 500, b'{"error":"The server failed; its log says where."}'
        headers: Mapping[str, str] = {"Content-Type": "application/json"}
        body = None
        with contextlib.ExitStack() as slot:
            try:
                body = self._body()
                catalog, limits = self.server.catalog, self.server.limits
                # The only answer that is no JSON.
                if path == _PAGE_PATH and self.command in ("GET", "HEAD"):
                    headers = _PAGE_HEADERS
                    status, answer = 200, _page_of(catalog)
                else:
                    # Before a slot is taken: a wrong address is told also under load.
                    route, found = _route(self.command, path)
                    self._check_is_free(route, slot)
                    named = {"name": None, **found.groupdict()}
                    call = Call(catalog, limits, body=body, **named)
                    status, answer = 200, _as_json(route.answer(call))
            except RequestError as error:
                status, answer = error.status, _as_json({"error": str(error)})
            except (ConnectionError, TimeoutError):
                raise  # there is nobody to answer
            except Exception as error:
                # Not its message, which may quote the request.
                _LOGGER.error(
                    "%s failed: %s\n%s",
                    self.command,
                    type(error).__name__,
                    "".join(traceback.format_tb(error.__traceback__)),
                )
            # What was not read of a body would be taken for the next request.
            if body is None or self.server.catalog.closed.is_set():
                self.close_connection = True
            self._send(status, answer, headers)
        if body is None:
            self._linger()
        seconds = time.perf_counter() - start
        shown = ascii(path[:200])
        _LOGGER.debug("%s %s %d %.4f s", self.command, shown, status, seconds)

    do_GET = do_HEAD = do_POST = _answer  # noqa: N815

    def _body(self) -> bytes:
        """Return the body, which has one known length, and not too large a one."""
        # A chunked or compressed body says its size too late for a limit; and with two
        # ways to tell the length, a proxy may take another one than this server.
        if "transfer-encoding" in self.headers or "content-encoding" in self.headers:
            raise RequestError(
                411, "Send the body whole, not compressed, with 'content-length'."
            )
        lengths = self.headers.get_all("content-length", [])
        if not lengths and self.command != "POST":
            return b""
        # `int` takes "+5", "5_0" and digits of other scripts, which a proxy reads
        # otherwise.
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", lengths[0]):
            raise RequestError(411, "'content-length' must be one number of bytes.")
        size, most = int(lengths[0]), self.server.limits.max_request_bytes
        if size > most:
            raise RequestError(
                413, f"The body has {size} bytes; at most {most} are taken."
            )
        body = self.rfile.read(size)
        if len(body) < size:
            raise RequestError(400, "The body ends too early.")
        return body

    def _check_is_free(self, route: Route, slot: contextlib.ExitStack) -> None:
        """Take one of the slots for requests that run, or refuse this one."""
        if route.method == "GET":  # cheap; and health must be seen under load
            return
        if self.server.catalog.closed.is_set():
            raise RequestError(503, "The server is stopping.")
        if not self.server.slots.acquire(blocking=False):
            raise RequestError(503, "The server is busy.")
        slot.callback(self.server.slots.release)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            # A version may be loading, and slots come free: clients try again by this.
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer what is no request of HTTP."""
        self.close_connection = True
        text = message or HTTPStatus(code).phrase
        self._send(
            code, _as_json({"error": text[:200]}), {"Content-Type": "application/json"}
        )

    def _linger(self) -> None:
        """Read what still comes for a second: else a reset may overtake the answer."""
        # RFC 9112, section 9.6: close the half that writes, and read on.
        deadline = time.monotonic() + 1
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(2**16):
                    return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: `_answer` does, and the path only."""


def _route(method: str, path: str) -> tuple[Route, re.Match[str]]:
    for route in _ROUTES:
        found = re.fullmatch(route.pattern, path)
        if found and route.method == method:
            return route, found
    raise RequestError(
        404,
        f"There is nothing to {method} at this path. Models are at "
        "/v1/models/NAME:predict and /v2/models/NAME/infer.",
    )


def _as_json(document: Any) -> bytes:
    """Return a document as JSON; raise RequestError (400) if a number is not finite."""
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise RequestError(
            400,
            "The model gives no finite number for these values. Are some very large?",
        ) from None


def _page_of(catalog: Catalog) -> bytes:
    """Return the page, with the newest version of each model that is served."""
    models = {
        name: _columns(served.newest[1])
        for name, served in catalog.models.items()
        if served.newest
    }
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    # Inside of a script, "</" would end it.
    return page.replace("MODELS", json.dumps(models).replace("<", "\\u003c")).encode()


def _columns(model: Model) -> dict[str, str]:
    """Return the columns that a model takes, and how a person writes each."""
    return {
        column: _kind(model.features[feature], column != feature)
        for column, feature in model.names_of().items()
    }


def _kind(feature: Any, is_part: bool) -> str:
    is_list = any(size != 1 for size in feature["shape"][1:])
    if is_list and not is_part:
        return "json"
    if feature.get("unit"):
        return "date"
    return "string" if feature["dtype"] == "string" else "number"
