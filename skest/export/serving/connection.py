# SPDX-License-Identifier: Apache-2.0
"""One connection: requests are read and answered, one after the other."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from skest.export.serving.application import Answer, Application
from skest.export.serving.errors import RequestError
from skest.export.serving.http_messages import Head, Inbox, response
from skest.export.serving.limits import Limits

__all__ = ["Connection", "Running"]

_LOGGER = logging.getLogger(__name__)
_LINGER = 1.0


class Running:
    """Counts the requests that came whole and have no answer yet."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until there are none; return whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, seconds)


class Connection:
    """A client that asks one request after the other.

    Parameters
    ----------
    connection : socket
        Connected to the client; it is left open.
    application : Application
        Answers the requests.
    limits : Limits
        What is taken from the client.
    """

    def __init__(
        self, connection: socket.socket, application: Application, limits: Limits
    ) -> None:
        self._connection = connection
        self._application = application
        self._limits = limits
        # Since when it has waited for the client; None while an answer is made.
        self.waits_since: float | None = time.monotonic()

    def serve(self, running: Running, stopping: Callable[[], bool]) -> None:
        """Answer requests until the client goes away, or has to.

        Parameters
        ----------
        running : Running
            Counts each request while it is answered.
        stopping : callable
            Whether the connection shall end after the next answer.
        """
        inbox = Inbox(self._connection, self._limits)
        with contextlib.suppress(OSError):
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            goes_on = True
            while goes_on:
                try:
                    head = inbox.head()
                    body = None if head is None else inbox.body(head)
                except RequestError as error:
                    # Where the next request would begin is not known.
                    self.refuse(error)
                    self._linger()
                    return
                if head is None or body is None:
                    return
                with running:
                    goes_on = self._answer(head, body, stopping)

    def end(self) -> None:
        """End the connection, which its thread may be reading from."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def refuse(self, error: RequestError) -> None:
        """Say why there will be no more answers."""
        self._send(self._application.refuse(error), keep_alive=False)

    def _answer(
        self, head: Head, body: bytearray, stopping: Callable[[], bool]
    ) -> bool:
        start = time.perf_counter()
        self.waits_since = None
        answer = self._application.answer(head.method, head.path, body)
        self.waits_since = time.monotonic()
        keep_alive = head.keep_alive and not stopping()
        self._send(answer, keep_alive, with_body=head.method != "HEAD")
        seconds = time.perf_counter() - start
        path = ascii(head.path[:200])
        _LOGGER.debug("%s %s %d %.4f s", head.method, path, answer.status, seconds)
        return keep_alive

    def _send(self, answer: Answer, keep_alive: bool, with_body: bool = True) -> None:
        headers = {"Content-Type": "application/json", **answer.headers}
        data = response(answer.status, answer.body, headers, keep_alive)
        if not with_body:
            data = data[: len(data) - len(answer.body)]
        self._connection.settimeout(self._limits.timeout)
        self._connection.sendall(data)

    def _linger(self) -> None:
        """Read what still comes for a while: else a reset may overtake the answer."""
        self._connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER
        while (left := deadline - time.monotonic()) > 0:
            self._connection.settimeout(left)
            if not self._connection.recv(65536):
                return
