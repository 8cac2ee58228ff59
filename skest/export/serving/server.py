# SPDX-License-Identifier: Apache-2.0
"""A small server of exported models, on ``http.server`` of the standard library."""

import contextlib
import http.server
import logging
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import unquote

from skest.core.files import explained
from skest.export.serving import open_inference, page, tf_rest
from skest.export.serving.requests import Call, Limits, Route, as_json
from skest.export.serving.versions import Catalog, RequestError
from skest.export.trial import Trial

_LOGGER = logging.getLogger(__name__)
_ROUTES = (*tf_rest.ROUTES, *open_inference.ROUTES)
_TRIAL = Trial()
_LINGER = 1.0


class ModelServer:
    """Serves exported models by HTTP.

    Two protocols are spoken: that of TensorFlow Serving below ``/v1``, and the Open
    Inference Protocol below ``/v2``; at ``/`` a browser finds a form for each model. New
    versions are served as they appear. It has no encryption and asks nobody who they are:
    put a proxy in front of it where that matters, and the ONNX file into Triton or KServe
    where there is much to answer.

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
    keep_versions : int, default=2
        How many versions of each model are served.
    num_threads : int, default=1
        Threads within one call of a model.
    trusted_manifest_sha256 : str or collection of str, optional
        Digests of the versions that may be served, see `skest.export.load`; others that
        appear in the directories are refused.
    max_bytes : int, default=16 GiB
        Larger versions are refused.
    trial : Trial, optional
        What a new version may take in a process of its own, where it is loaded first: one
        that ends this process, or takes too much, is not served. By default `Trial()`;
        None loads versions at once.

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
        keep_versions: int = 2,
        num_threads: int = 1,
        trusted_manifest_sha256: str | Collection[str] | None = None,
        max_bytes: int = 16 * 2**30,
        trial: Trial | None = _TRIAL,
    ) -> None:
        if not poll_seconds > 0:
            raise ValueError(f"'poll_seconds' must be positive; got {poll_seconds!r}.")
        if not 0 <= port <= 65535:
            raise ValueError(f"'port' must be from 0 to 65535; got {port!r}.")
        self._catalog = Catalog(
            models,
            keep_versions,
            num_threads,
            trusted_manifest_sha256=trusted_manifest_sha256,
            max_bytes=max_bytes,
            trial=trial,
        )
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

    def start(self) -> Self:
        """Listen, and load the models; return when they are loaded.

        Raises
        ------
        ImportError
            If ``onnxruntime`` is not installed.
        """
        # Health is answered from the start: large models take a while.
        self._run("skest-listen", self._listener.serve_forever, 0.05)
        try:
            self._catalog.refresh()
        except BaseException:
            self.stop()
            raise
        for name in self._catalog.waiting:
            _LOGGER.warning(
                "The directory of %s has no version that can be served yet, a folder that "
                "estimator.export(directory) writes; it is looked through every %g s.",
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
        self._catalog.close()
        finished = self._listener.finished(grace)
        if self._threads:
            self._listener.shutdown()
        self._listener.server_close()
        self._listener.disconnect()
        for thread in self._threads:
            thread.join(grace)
        return finished

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


class _Listener(http.server.ThreadingHTTPServer):
    """Accepts connections, and knows which of them wait for their clients.

    A thread belongs to each connection. One that is silent or slow is ended after
    `Limits.timeout`; where there are too many, the one that has waited longest makes room.
    """

    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], catalog: Catalog, limits: Limits
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.catalog = catalog
        self.limits = limits
        self.slots = threading.BoundedSemaphore(limits.max_running)
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, float] = {}  # since when; oldest first
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not that of http.server, which asks for the name of the machine.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._changed:
            if len(self._open) >= self.limits.max_connections:
                if not self._waiting:
                    return False  # answers to all others are being made
                self._end(next(iter(self._waiting)))
            self._open.add(request)
            self._waiting[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        last = time.monotonic() - self.limits.timeout
        with self._changed:
            for connection, since in list(self._waiting.items()):
                if since < last:
                    self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """End a connection, which its thread may be reading from."""
        self._waiting.pop(connection, None)
        self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._waiting.pop(request, None)
            self._open.discard(request)
            self._changed.notify_all()
        super().shutdown_request(request)

    @contextlib.contextmanager
    def answering(self, connection: socket.socket) -> Any:
        """Say that a connection waits for the server, not for its client."""
        with self._changed:
            self._waiting.pop(connection, None)
        try:
            yield
        finally:
            with self._changed:
                if connection in self._open:
                    self._waiting[connection] = time.monotonic()
                self._changed.notify_all()

    def finished(self, seconds: float) -> bool:
        """Wait until no request is being answered; return whether it is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._open <= self._waiting.keys(), seconds
            )

    def disconnect(self) -> None:
        """End all connections."""
        with self._changed:
            for connection in list(self._open):
                self._end(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOGGER.debug("A connection broke.", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers the requests of a connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "skest"
    sys_version = ""
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.timeout)

    def _answer(self) -> None:
        start = time.perf_counter()
        path = unquote(self.path.partition("?")[0])
        try:
            body = self._body()
        except RequestError as error:
            self.close_connection = True  # where the next one would begin is not known
            self._send(error.status, as_json({"error": str(error)}), error.headers)
            self._linger()
            return
        with self.server.answering(self.connection):
            status, answer, headers = self._answer_to(path, body)
            if self.server.catalog.closed:
                self.close_connection = True
            self._send(status, answer, headers)
        seconds = time.perf_counter() - start
        shown = ascii(path[:200])
        _LOGGER.debug("%s %s %d %.4f s", self.command, shown, status, seconds)

    do_GET = do_HEAD = do_POST = _answer  # noqa: N815
    do_DELETE = do_OPTIONS = do_PATCH = do_PUT = _answer  # noqa: N815

    def handle_expect_100(self) -> bool:
        # A body that is too large is refused before it is sent.
        if self.headers.get("content-length", "").isdigit():
            size = int(self.headers["content-length"])
            if size > self.server.limits.max_request_bytes:
                return True
        return super().handle_expect_100()

    def _body(self) -> bytes:
        """Return the body, which has one known length, and not too large a one."""
        if "transfer-encoding" in self.headers:
            raise RequestError(411, "Send the body whole, with 'content-length'.")
        if "content-encoding" in self.headers:
            raise RequestError(415, "Send the body as it is, not compressed.")
        lengths = self.headers.get_all("content-length", [])
        if not lengths:
            if self.command == "POST":
                raise RequestError(411, "The header 'content-length' is missing.")
            return b""
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,18}", lengths[0]):
            raise RequestError(400, "'content-length' must be one number of bytes.")
        size, most = int(lengths[0]), self.server.limits.max_request_bytes
        if size > most:
            raise RequestError(
                413, f"The body has {size} bytes; at most {most} are taken."
            )
        body = self.rfile.read(size)
        if len(body) < size:
            raise RequestError(400, "The body ends too early.")
        return body

    def _answer_to(self, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        catalog, limits = self.server.catalog, self.server.limits
        if path == page.PATH and self.command in ("GET", "HEAD"):
            return 200, page.page_of(catalog), page.HEADERS
        try:
            route, found = _route(self.command, path)
            call = Call(catalog, limits, found.groupdict(), body)
            if route.method == "GET":  # cheap; and health must be seen under load
                return 200, as_json(route.answer(call)), {}
            if catalog.closed:
                raise RequestError(503, "The server is stopping.", {"Retry-After": "1"})
            if not self.server.slots.acquire(blocking=False):
                raise RequestError(503, "The server is busy.", {"Retry-After": "1"})
            try:
                return 200, as_json(route.answer(call)), {}
            finally:
                self.server.slots.release()
        except RequestError as error:
            return error.status, as_json({"error": str(error)}), error.headers
        except Exception as error:
            # Not its message, which may quote the request.
            _LOGGER.error(
                "%s failed: %s\n%s",
                self.command,
                type(error).__name__,
                "".join(traceback.format_tb(error.__traceback__)),
            )
            text = as_json({"error": "The server failed; its log says where."})
            return 500, text, {}

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        # All at once: a client of a server that stops gets the whole answer or nothing.
        lines = {
            "Date": self.date_time_string(),
            "Content-Type": "application/json",
            "Content-Length": len(body),
            **headers,
            **({"Connection": "close"} if self.close_connection else {}),
        }
        head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        head += [f"{name}: {value}" for name, value in lines.items()]
        text = "\r\n".join([*head, "", ""]).encode("latin-1")
        self.wfile.write(text if self.command == "HEAD" else text + body)

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer what is no request of HTTP."""
        self.close_connection = True
        text = message or HTTPStatus(code).phrase
        self._send(code, as_json({"error": text[:200]}), {})

    def _linger(self) -> None:
        """Read what still comes for a while: else a reset may overtake the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(2**16):
                    return

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: `_answer` does, and the path only."""


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
