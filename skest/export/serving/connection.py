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

__all__ = ["Running", "send", "serve_connection"]

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


def serve_connection(
    connection: socket.socket,
    application: Application,
    limits: Limits,
    running: Running,
    stopping: Callable[[], bool],
) -> None:
    """Answer the requests of a client until it goes away, or has to.

    Parameters
    ----------
    connection : socket
        Connected to the client; it is left open.
    application : Application
        Answers the requests.
    limits : Limits
        What is taken from the client.
    running : Running
        Counts each request while it is answered.
    stopping : callable
        Whether the connection shall end after the next answer.
    """
    inbox = Inbox(connection, limits)
    with contextlib.suppress(OSError):
        goes_on = True
        while goes_on:
            try:
                head = inbox.head()
                body = None if head is None else inbox.body(head)
            except RequestError as error:
                # Where the next request would begin is not known.
                send(connection, application.refuse(error), limits, keep_alive=False)
                _linger(connection)
                return
            if head is None or body is None:
                return
            with running:
                goes_on = _answer(connection, application, limits, head, body, stopping)


def _answer(
    connection: socket.socket,
    application: Application,
    limits: Limits,
    head: Head,
    body: bytearray,
    stopping: Callable[[], bool],
) -> bool:
    start = time.perf_counter()
    answer = application.answer(head.method, head.path, body)
    keep_alive = head.keep_alive and not stopping()
    send(connection, answer, limits, keep_alive, with_body=head.method != "HEAD")
    seconds = time.perf_counter() - start
    path = ascii(head.path[:200])
    _LOGGER.debug("%s %s %d %.4f s", head.method, path, answer.status, seconds)
    return keep_alive


def send(
    connection: socket.socket,
    answer: Answer,
    limits: Limits,
    keep_alive: bool,
    with_body: bool = True,
) -> None:
    """Send an answer."""
    headers = {"Content-Type": "application/json", **answer.headers}
    data = response(answer.status, answer.body, headers, keep_alive)
    connection.settimeout(limits.timeout)
    connection.sendall(data if with_body else data[: len(data) - len(answer.body)])


def _linger(connection: socket.socket) -> None:
    """Read what is still coming for a while: else the answer may be lost to a reset."""
    connection.shutdown(socket.SHUT_WR)
    deadline = time.monotonic() + _LINGER
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        if not connection.recv(65536):
            return
