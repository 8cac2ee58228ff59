# SPDX-License-Identifier: Apache-2.0
"""The server: it listens, gives each connection a thread, and stops in order."""

import contextlib
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from skest._files import explained
from skest.export.serving.application import Application
from skest.export.serving.connection import Connection, Running
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits
from skest.export.serving.versions import Catalog
from skest.export.trial import Trial

__all__ = ["ModelServer"]

_LOGGER = logging.getLogger(__name__)
_TRIAL = Trial()


class ModelServer:
    """Serves exported models by HTTP.

    Two protocols are spoken: that of TensorFlow Serving below ``/v1``, and the Open
    Inference Protocol below ``/v2``. New versions are served as they appear. It has no
    encryption and asks nobody who they are: put a proxy in front of it where that matters.

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
        finished = self._listener.running.wait(grace)
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


class _Listener(socketserver.ThreadingTCPServer):
    """Accepts connections; each has a thread."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], catalog: Catalog, limits: Limits
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.running = Running()
        self._catalog = catalog
        self._limits = limits
        self._application = Application(catalog, limits)
        self._connections: dict[socket.socket, Connection] = {}
        self._lock = threading.Lock()
        super().__init__(address, socketserver.BaseRequestHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        connection = Connection(request, self._application, self._limits)
        with self._lock:
            full = len(self._connections) >= self._limits.max_connections
            if not full or self._make_room():
                self._connections[request] = connection
                return True
        error = RequestError(503, "Too many connections.", {"Retry-After": "1"})
        with contextlib.suppress(OSError):
            connection.refuse(error)
        return False

    def _make_room(self) -> bool:
        """End the connection that has waited longest; tell whether there was one."""
        waiting = {
            request: since
            for request, connection in self._connections.items()
            if (since := connection.waits_since) is not None
        }
        if waiting:
            self._connections.pop(min(waiting, key=waiting.__getitem__)).end()
        return bool(waiting)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            connection = self._connections.get(request)
        if connection is not None:
            connection.serve(self.running, lambda: self._catalog.closed)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def disconnect(self) -> None:
        """End all connections."""
        with self._lock:
            for connection in self._connections.values():
                connection.end()
