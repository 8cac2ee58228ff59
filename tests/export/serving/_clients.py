# SPDX-License-Identifier: Apache-2.0
"""Clients for the tests of the server: polite ones, and sockets for the others."""

import http.client
import json
import socket
import time
from urllib.parse import urlsplit

ROWS = [
    {"city": "red", "age": 1, "tags": [1]},
    {"city": None, "age": 0.5, "tags": []},
    {"city": "blue", "age": -3.0, "tags": None},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
# sigmoid(1 + 1 + 1), sigmoid(0 + 0.5 + 0), sigmoid(0.5 - 3 + 0)
YES = [0.9525741, 0.6224593, 0.0758582]


class Client:
    """Sends requests by one connection, as JSON."""

    def __init__(self, server, timeout=60):
        self._connection = http.client.HTTPConnection(
            urlsplit(server.url).netloc, timeout=timeout
        )

    def __call__(self, path, document=None, method=None, body=None, headers=None):
        """Return the status and the document of the answer."""
        if document is not None:
            body = json.dumps(document).encode()
        method = method or ("GET" if body is None else "POST")
        self._connection.request(method, path, body, headers or {})
        self.response = self._connection.getresponse()
        data = self.response.read()
        return self.response.status, json.loads(data) if data else None

    def close(self):
        self._connection.close()


def connect(server, timeout=60):
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout)


def post(path, body, *headers):
    """Return a request as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def read_all(connection):
    """Return what comes until the server ends the connection."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def send_raw(server, data):
    """Send bytes; return (status, document) of the only answer."""
    with connect(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return parsed(read_all(connection))


def parsed(data):
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else None


def until(condition, seconds=60):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
