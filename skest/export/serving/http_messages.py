# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 as a server of JSON needs it: requests read within limits, answers written.

Only one reading of a request is allowed (RFC 9112): folded headers, two lengths or a
chunked body are refused rather than guessed at, so that no proxy in front can see another
request than the server does.
"""

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits

__all__ = ["Head", "Inbox", "parse_head", "response"]

_REQUEST = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ \t!-~\x80-\xff]*)")
_END = b"\r\n\r\n"
_PIECE = 2**16


@dataclass(frozen=True)
class Head:
    """The first line of a request, and what its headers say of the body."""

    method: str
    path: str
    keep_alive: bool
    size: int
    awaits_continue: bool


def parse_head(data: bytes) -> Head:
    r"""Return what the first line and the headers say.

    Parameters
    ----------
    data : bytes
        All up to the empty line, without it.

    Returns
    -------
    Head
        The path is decoded, and has no query.

    Raises
    ------
    RequestError
        If it is no request of HTTP/1.1, or one that has no known length.

    Examples
    --------
    >>> from skest.export.serving.http_messages import parse_head
    >>> head = parse_head(b"POST /v1/models/m%3Apredict?x=1 HTTP/1.0\r\ncontent-length: 2")
    >>> head.path, head.size, head.keep_alive
    ('/v1/models/m:predict', 2, False)
    """
    first, *lines = data.decode("latin-1").split("\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise RequestError(400, "The first line must be METHOD /path HTTP/1.1.")
    method, target, minor = request.groups()
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise RequestError(400, "A header is malformed.")
        name, value = header[1].lower(), header[2].rstrip(" \t")
        if name in headers and name in ("content-length", "host", "transfer-encoding"):
            raise RequestError(400, f"The header {name!r} is there twice.")
        headers[name] = value
    if minor == "1" and "host" not in headers:
        raise RequestError(400, "The header 'host' is missing.")
    connection = headers.get("connection", "").lower()
    return Head(
        method=method,
        path=unquote(target.partition("?")[0]),
        keep_alive=minor == "1" and "close" not in connection,
        size=_body_size(method, headers),
        awaits_continue=_awaits_continue(headers),
    )


def _body_size(method: str, headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise RequestError(411, "Send the body whole, with 'content-length'.")
    if "content-encoding" in headers:
        raise RequestError(415, "Send the body as it is, not compressed.")
    length = headers.get("content-length")
    if length is None:
        if method == "POST":
            raise RequestError(411, "The header 'content-length' is missing.")
        return 0
    if not re.fullmatch("[0-9]{1,18}", length):
        raise RequestError(400, "'content-length' must be a number of bytes.")
    return int(length)


def _awaits_continue(headers: Mapping[str, str]) -> bool:
    expected = headers.get("expect", "").lower()
    if expected not in ("", "100-continue"):
        raise RequestError(417, "Only '100-continue' may be expected.")
    return bool(expected)


class Inbox:
    """What a client sends, request after request.

    Parameters
    ----------
    connection : socket
        Connected to the client.
    limits : Limits
        How much may come, and how long it may take.
    """

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._buffer = bytearray()
        self._deadline = 0.0

    def head(self) -> Head | None:
        """Return the head of the next request, None if there is none.

        Raises
        ------
        RequestError
            If it is too large, too slow, or malformed.
        """
        self._set_deadline()
        if not self._buffer:
            try:
                if not self._receive():
                    return None
            except RequestError:
                return None  # The connection was idle.
            self._set_deadline()
        while (end := self._end_of_head()) < 0:
            # Not all that speaks to a port speaks HTTP; TLS never comes to an end.
            if self._buffer and not self._buffer[:1].isalpha():
                raise RequestError(400, "This is no HTTP/1.1.")
            if len(self._buffer) > self._limits.max_header_bytes:
                break
            if not self._receive():
                return None
        if not 0 <= end <= self._limits.max_header_bytes:
            raise RequestError(
                431, f"Headers may have {self._limits.max_header_bytes} bytes."
            )
        data = bytes(self._buffer[:end])
        del self._buffer[: end + len(_END)]
        return parse_head(data)

    def body(self, head: Head) -> bytearray | None:
        """Return the body of a request, None if the client went away.

        Raises
        ------
        RequestError
            If it is too large or too slow.
        """
        if head.size > self._limits.max_request_bytes:
            raise RequestError(
                413,
                f"The body has {head.size} bytes; at most "
                f"{self._limits.max_request_bytes} are taken.",
            )
        if head.awaits_continue and len(self._buffer) < head.size:
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Not more memory than has come: to say how long a body is costs nothing.
        body = self._buffer[: head.size]
        del self._buffer[: head.size]
        while len(body) < head.size:
            self._wait()
            try:
                piece = self._connection.recv(min(head.size - len(body), _PIECE))
            except TimeoutError:
                raise self._too_slow() from None
            if not piece:
                return None
            body += piece
        return body

    def _end_of_head(self) -> int:
        # Some clients send an empty line after a body.
        self._buffer = self._buffer.lstrip(b"\r\n")
        return self._buffer.find(_END)

    def _receive(self) -> bool:
        self._wait()
        try:
            data = self._connection.recv(_PIECE)
        except TimeoutError:
            raise self._too_slow() from None
        self._buffer += data
        return bool(data)

    def _set_deadline(self) -> None:
        self._deadline = time.monotonic() + self._limits.timeout

    def _wait(self) -> None:
        """Let the connection wait as long as the whole request still may take."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_slow()
        self._connection.settimeout(left)

    def _too_slow(self) -> RequestError:
        return RequestError(
            408, f"A request must arrive within {self._limits.timeout} seconds."
        )


def response(
    status: int, body: bytes, headers: Mapping[str, str], keep_alive: bool
) -> bytes:
    """Return an answer as it is sent.

    Parameters
    ----------
    status : int
        The HTTP status code.
    body : bytes
        Its content.
    headers : dict of str to str
        Headers besides those of every answer.
    keep_alive : bool
        Whether another request may follow.
    """
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
