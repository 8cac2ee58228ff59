# SPDX-License-Identifier: Apache-2.0
"""Requests that are wrong, large, slow or many: each is refused, and none does harm."""

import contextlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skest
from skest.export.serving.requests import Limits
from skest.export.serving.server import ModelServer
from tests.export.serving import _single
from tests.export.serving._clients import (
    COLUMNS,
    ROWS,
    Client,
    connect,
    parsed,
    read_all,
    send_raw,
    until,
)

PREDICT = "/v1/models/census:predict"
INFER = "/v2/models/census/infer"
GET = b"GET /v2/health/live HTTP/1.1\r\n"
POST = b"POST /v1/models/census:predict HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\n", 400, "Bad request"),
        (GET + b"A: " + b"x" * 70_000 + b"\r\n\r\n", 431, "Line too long"),
        (POST + b"\r\n", 411, "'content-length' must be one number"),
        (
            POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            411,
            "Send the body whole",
        ),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n1", 411, "compr"),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 411, "one number"),
        (POST + b"Content-Length: 1048577\r\n\r\n", 413, "at most 1048576 are taken"),
    ],
)
def test_what_is_no_request(server, data, status, message):
    with connect(server) as connection:
        connection.sendall(data)
        found, answer = parsed(read_all(connection))
    assert found == status
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body must be JSON"),
        (b"\xff\xfe", "The body must be JSON"),
        (b'{"a": NaN}', "NaN is no JSON; write null"),
        (b'{"a": 1e999}', "1e999 is no number of 64 bits"),
        (b'{"inputs": 1, "inputs": 2}', "a name is there twice"),
        (b"[1]", "must be a JSON object; got a list"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json(ask, body, message):
    status, answer = ask(PREDICT, body=body, method="POST")
    assert status == 400
    assert message in answer["error"]


def test_lone_surrogates(ask):
    body = json.dumps({"instances": [{**ROWS[0], "city": "\ud800"}]}).encode()
    status, answer = ask(PREDICT, body=body)
    assert status == 400 and "no Unicode" in answer["error"]


def test_many_rows(ask):
    status, answer = ask(PREDICT, {"instances": ROWS[:1] * 1001})
    assert status == 413 and "There are 1001 rows; at most 1000 are" in answer["error"]


@pytest.mark.parametrize("long", [[1] * 100, "1|" * 99, ["1|" * 49, "1|" * 49]])
def test_one_long_list_among_many_short_ones(ask, long):
    rows = ROWS[:1] * 200 + [{**ROWS[0], "tags": long}]
    status, answer = ask(PREDICT, {"instances": rows})
    assert status == 413
    assert "'tags', filled up to its longest list, would have 20100" in answer["error"]


def test_a_long_text_among_numbers_takes_its_own_memory_only(ask):
    # As an array of texts these would be 3.6 GB.
    columns = {name: [None] * 1000 for name in COLUMNS}
    columns["age"] = ["x" * 900_000] + [1] * 999
    status, answer = ask(PREDICT, {"inputs": columns})
    assert status == 400
    assert "'age' takes numbers" in answer["error"] and len(answer["error"]) < 1100


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("PUT", PREDICT, 501), ("POST", "/v1/models/census", 404)],
)
def test_other_methods(ask, method, path, status):
    found, answer = ask(path, method=method, body=b"{}")
    assert found == status and "error" in answer
    assert ask("/v2/health/live")[0] == 200


def test_a_body_that_ends_too_early(server):
    status, answer = send_raw(server, POST + b"Content-Length: 100\r\n\r\n{}")
    assert status == 400 and "ends too early" in answer["error"]


def _handlers():
    """The threads of connections, of all servers here."""
    return {t for t in threading.enumerate() if "process_request" in t.name}


def test_silent_clients_and_those_that_read_nothing_are_left(tmp_path):
    """Else each would keep a thread, and what it did not read, for good."""
    others = _handlers()
    with (
        ModelServer({"m": tmp_path}, port=0, limits=Limits(timeout=0.1)) as server,
        connect(server) as silent,
        connect(server, timeout=3) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        requests = (GET + b"Host: x\r\n\r\n") * 1000
        # Until the server hangs up, of which a client with full buffers may hear nothing.
        with pytest.raises(OSError):
            while True:
                connection.sendall(requests)
        assert read_all(silent) == b""
        until(lambda: not _handlers() - others)


@pytest.fixture
def small(tmp_path):
    """A server that works on one request."""
    _single.write(tmp_path / "1")
    limits = Limits(max_running=1, timeout=5.0)
    with ModelServer({"double": tmp_path}, port=0, limits=limits) as server:
        yield server


def test_too_many_requests(small, monkeypatch):
    busy, go = threading.Event(), threading.Event()
    model = small._catalog.served("double").newest[1]
    run = model.run

    def slow(*arguments):
        busy.set()
        assert go.wait(60)
        return run(*arguments)

    monkeypatch.setattr(model, "run", slow)
    document = {"instances": [1]}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Client(small), "/v1/models/double:predict", document)
        assert busy.wait(60)
        client = Client(small)
        status, answer = client("/v1/models/double:predict", document)
        assert status == 503 and "busy" in answer["error"]
        assert client.response.headers["Retry-After"] == "1"
        assert client("/v2/health/ready")[0] == 200
        go.set()
        assert first.result()[0] == 200
    # A request has its place until its answer is sent, a moment longer than it is read.
    with small._listener.slots:
        pass
    assert client("/v1/models/double:predict", document)[0] == 200


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[ONNXRuntimeError] : Failed to allocate memory for requested"),
    ],
)
def test_what_the_memory_does_not_suffice_for(small, monkeypatch, caplog, error):
    def fail(columns, _):
        raise error

    monkeypatch.setattr(small._catalog.served("double").newest[1], "run", fail)
    status, answer = Client(small)("/v1/models/double:predict", {"instances": [1]})
    assert status == 503 and "memory does not suffice" in answer["error"]
    assert not caplog.text


def test_a_failure_tells_nothing_of_the_request(small, monkeypatch, caplog):
    def fail(columns, _):
        raise RuntimeError(f"failed at {columns}")

    monkeypatch.setattr(small._catalog.served("double").newest[1], "run", fail)
    status, answer = Client(small)("/v1/models/double:predict", {"instances": [4242]})
    assert (status, answer["error"]) == (500, "The server failed; its log says where.")
    assert "RuntimeError" in caplog.text and "4242" not in caplog.text


def test_logs_have_the_path_only(server, ask, caplog):
    caplog.set_level("DEBUG", "skest.export.serving")
    ask("/v2/health/live%0d%0aX?token=secret")
    ask(PREDICT, {"instances": [{**ROWS[0], "city": "secret"}]})
    until(lambda: f"POST '{PREDICT}' 200" in caplog.text)
    assert "GET '/v2/health/live\\r\\nX' 404" in caplog.text
    assert "secret" not in caplog.text


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                "instances inputs examples context signature_name city age tags name "
                "shape datatype data b64".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([PREDICT, PREDICT.replace("predict", "classify"), INFER]), ANYTHING
)
def test_any_document_is_answered(server, path, document):
    with contextlib.closing(Client(server)) as client:
        assert client(path, body=json.dumps(document).encode())[0] in (200, 400, 413)


def test_an_answer_of_many_classes_is_counted_before_it_is_made(tmp_path):
    classes = np.arange(500)
    model = skest.BaselineClassifier(max_iter=1).fit(classes[:, None] * 1.0, classes)
    model.export(tmp_path)
    limits = Limits(max_cells=500 * 4)
    with ModelServer({"m": tmp_path}, port=0, limits=limits) as server:
        client = Client(server)
        for n_rows, expected in ((4, 200), (5, 413)):
            document = {"instances": [{"x": [0.0]}] * n_rows}
            status, found = client("/v1/models/m:predict", document)
            assert status == expected, found
        assert "would have 2500 values; at most 2000" in found["error"]
        client.close()
