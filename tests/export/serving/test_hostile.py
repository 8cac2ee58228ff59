# SPDX-License-Identifier: Apache-2.0
"""Requests that are wrong, large, slow or many: each is refused, and none does harm."""

import contextlib
import json
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skest
from skest import export
from skest.export.serving.errors import RequestError
from skest.export.serving.http_messages import Inbox, parse_head
from skest.export.serving.limits import Limits
from skest.export.serving.request_sizes import answer_numbers
from skest.export.serving.server import ModelServer
from tests.export.serving import _single
from tests.export.serving._clients import (
    COLUMNS,
    ROWS,
    Client,
    connect,
    parsed,
    post,
    read_all,
    send_raw,
    until,
)

PREDICT = "/v1/models/census:predict"
GET = b"GET /v2/health/live HTTP/1.1\r\n"
POST = b"POST /v1/models/census:predict HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, "no HTTP"),
        (bytes(range(256)), 400, "no HTTP"),
        (b"GET /v2/health/live\r\n\r\n", 400, "The first line must be"),
        (b"GET /v2/health/live HTTP/2.0\r\n\r\n", 400, "The first line must be"),
        (b"GET  /v2 HTTP/1.1\r\n\r\n", 400, "The first line must be"),
        (b"GET http://x/v2 HTTP/1.1\r\n\r\n", 400, "The first line must be"),
        (b"GET /v2\xff HTTP/1.1\r\n\r\n", 400, "The first line must be"),
        (GET + b"\r\n", 400, "'host' is missing"),
        (GET + b"Host: x\r\nHost: y\r\n\r\n", 400, "'host' is there twice"),
        (GET + b"Host: x\r\n folded: y\r\n\r\n", 400, "A header is malformed"),
        (GET + b"Host : x\r\n\r\n", 400, "A header is malformed"),
        (GET + b"Host: x\r\nA: \x00\r\n\r\n", 400, "A header is malformed"),
        (GET + b"Host: x\r\nA: b\nC: d\r\n\r\n", 400, "A header is malformed"),
        (GET + b"Host: x\r\nno colon\r\n\r\n", 400, "A header is malformed"),
        (GET + b"A: " + b"x" * 20_000 + b"\r\n\r\n", 431, "may have 16384 bytes"),
        (GET + b"A: b\r\n" * 5000 + b"\r\n", 431, "may have 16384 bytes"),
        (GET + b"x" * 20_000, 431, "may have 16384 bytes"),
        (POST + b"\r\n", 411, "'content-length' is missing"),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            411,
            "Send the body whole",
        ),
        (
            POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            411,
            "Send the body whole",
        ),
        (
            POST + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n1",
            415,
            "compress",
        ),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "twice"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "must be a number of bytes"),
        (POST + b"Content-Length: +2\r\n\r\n{}", 400, "must be a number of bytes"),
        (POST + b"Content-Length: 0x2\r\n\r\n{}", 400, "must be a number of bytes"),
        (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400, "must be a number of bytes"),
        (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400, "number of bytes"),
        (POST + b"Content-Length: 1048577\r\n\r\n", 413, "at most 1048576 are taken"),
        (POST + b"Expect: magic\r\nContent-Length: 2\r\n\r\n{}", 417, "'100-continue'"),
    ],
)
def test_what_is_no_request(server, data, status, message):
    with connect(server) as connection:
        connection.sendall(data)
        found, answer = parsed(read_all(connection))
    assert found == status
    assert message in answer["error"]


def test_a_large_body_is_refused_before_it_is_read(server):
    head = post(PREDICT, b"")[:-4].replace(b"Content-Length: 0", b"Content-Length: %d")
    with connect(server) as connection:
        connection.sendall(head % 10**12 + b"\r\n\r\n" + b"x" * 100)
        connection.settimeout(5)  # less than the time that a request may take
        status, _ = parsed(connection.recv(65536))
    assert status == 413


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body must be JSON"),
        (b"{", "The body must be JSON"),
        (b"\xff\xfe", "The body must be JSON"),
        (b'{"a": NaN}', "NaN is no JSON; write null"),
        (b'{"a": -Infinity}', "-Infinity is no JSON"),
        (b'{"a": 1e999}', "1e999 is no number of 64 bits"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "The body must be JSON"),
        (b'{"inputs": 1, "inputs": 2}', "a name is there twice"),
        (b'{"instances": [{"age": 1, "age": 2}]}', "a name is there twice"),
        (b"[1]", "must be a JSON object; got a list"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"instances": "\\ud800"}', "must be a list of one row"),
    ],
)
@pytest.mark.parametrize("path", [PREDICT, "/v2/models/census/infer"])
def test_what_is_no_json(ask, path, body, message):
    status, answer = ask(path, body=body, method="POST")
    assert status == 400
    assert message in answer["error"] or "a list of JSON objects" in answer["error"]


def test_values_nested_deeply(ask):
    values = json.loads("[" * 500 + "1" + "]" * 500)
    status, _ = ask(PREDICT, {"inputs": {name: [values] * 3 for name in COLUMNS}})
    assert status == 400


def test_lone_surrogates(ask):
    body = json.dumps({"instances": [{**ROWS[0], "city": "\ud800"}]}).encode()
    status, answer = ask(PREDICT, body=body)
    assert status == 400 and "no Unicode" in answer["error"]


def test_many_rows(ask):
    status, answer = ask(PREDICT, {"instances": ROWS[:1] * 1001})
    assert status == 413 and "has 1001 rows; at most 1000 are" in answer["error"]


@pytest.mark.parametrize("long", [[1] * 100, "1|" * 99, ["1|" * 49, "1|" * 49]])
def test_one_long_list_among_many_short_ones(ask, long):
    rows = ROWS[:1] * 200 + [{**ROWS[0], "tags": long}]
    status, answer = ask(PREDICT, {"instances": rows})
    assert status == 413
    assert "'tags' has 201 rows of up to 100 values" in answer["error"]


def test_a_long_text_among_numbers_takes_its_own_memory_only(ask):
    # As an array of texts these would be 3.6 GB.
    columns = {name: [None] * 1000 for name in COLUMNS}
    columns["age"] = ["x" * 900_000] + [1] * 999
    status, answer = ask(PREDICT, {"inputs": columns})
    assert status == 400
    assert "'age' takes numbers" in answer["error"] and len(answer["error"]) < 1100


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../etc/passwd",
        "/v1/models/..",
        "/v1/models/%2e%2e%2fetc/metadata",
        "/v1/models/census%00",
        "/v2/models/%2fetc%2fpasswd",
        "/v2/models/census/../../x/ready",
        "/etc/passwd",
        "//",
        "/%ff%fe",
    ],
)
def test_paths_lead_nowhere(ask, path):
    status, answer = ask(path)
    assert status == 404
    assert set(answer) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", PREDICT, "POST"),
        ("GET", PREDICT, "POST"),
        ("OPTIONS", PREDICT, "POST"),
        ("POST", "/v1/models/census", "GET"),
        ("DELETE", "/v2/models/census", "GET"),
        ("M-SEARCH", "/v2", "GET"),
    ],
)
def test_other_methods(ask, method, path, allowed):
    status, answer = ask(path, method=method, body=b"{}")
    assert status == 405 and f"takes {allowed}, not" in answer["error"]
    assert ask.response.headers["Allow"] == allowed
    # The connection goes on.
    assert ask("/v2/health/live")[0] == 200


def test_head_has_no_body(server):
    request = b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, body = send_raw(server, request)
    assert status == 405 and body is None


def test_a_body_that_ends_too_early(server):
    head, _, _ = post(PREDICT, b"x" * 100).partition(b"\r\n\r\n")
    with connect(server) as connection:
        connection.sendall(head + b"\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    base = tmp_path_factory.mktemp("impatient")
    with ModelServer({"m": base}, port=0, limits=Limits(timeout=0.5)) as server:
        yield server


@pytest.mark.parametrize("data", [POST + b"Content-Length: 100\r\n\r\n", GET])
def test_slow_requests(impatient, data):
    """A byte now and then does not lengthen the time that a request has."""
    start = time.monotonic()
    with connect(impatient) as connection:
        connection.sendall(data)
        done = threading.Event()
        drip = threading.Thread(target=_drip, args=(connection, done))
        drip.start()
        status, answer = parsed(read_all(connection))
        done.set()
        drip.join()
    assert status == 408 and "within 0.5 seconds" in answer["error"]
    assert time.monotonic() - start > 0.4


def test_what_a_body_claims_takes_no_memory():
    limits = Limits(max_request_bytes=2**30)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(post(PREDICT, b"").replace(b": 0", b": 1000000000") + b"{}")
        theirs.shutdown(socket.SHUT_WR)
        inbox = Inbox(ours, limits)
        tracemalloc.start()
        try:
            assert inbox.body(inbox.head()) is None
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 2**20


@pytest.mark.parametrize(
    "sent", [b"", GET + b"A: ", POST + b"Content-Length: 9\r\n\r\n1"]
)
def test_silent_clients_make_room_for_others(small, sent):
    """Whoever asks is answered, health as well, however many say nothing."""
    silent = [connect(small) for _ in range(6)]
    for connection in silent:
        with contextlib.suppress(OSError):  # two stay
            connection.sendall(sent)
    ask = Client(small)
    assert ask("/v2/health/ready")[0] == 200
    assert ask("/v1/models/double:predict", {"instances": [1]})[0] == 200
    assert [read_all(connection) for connection in silent[:5]] == [b""] * 5
    for connection in silent:
        connection.close()


def test_clients_that_read_no_answers_are_left(impatient):
    """Else each would keep a thread, and what it did not read, for good."""
    with connect(impatient) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        requests = (GET + b"Host: x\r\n\r\n") * 1000
        with pytest.raises(OSError):
            while True:  # until the server hangs up
                connection.sendall(requests)


def _drip(connection, done):
    while not done.wait(0.05):
        try:
            connection.sendall(b"x")
        except OSError:
            return


def test_idle_connections_end_without_a_word(impatient):
    with connect(impatient) as connection:
        assert read_all(connection) == b""


def test_pipelining(server):
    body = json.dumps({"instances": ROWS}).encode()
    requests = [post(PREDICT, body), b"\r\n" + GET + b"Host: x\r\n\r\n"] * 5
    last = GET + b"Host: x\r\nConnection: close\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(b"".join([*requests, last]))
        data = read_all(connection)
    assert data.count(b"HTTP/1.1 200 OK") == 11
    assert data.count(b'{"predictions":') == 5
    assert data.count(b'{"live":true}') == 6
    assert data.count(b"Connection: close") == 1


def test_http_1_0_and_close(server):
    with connect(server) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert parsed(read_all(connection)) == (200, {"live": True})


def test_expected_continue(server):
    body = json.dumps({"instances": ROWS}).encode()
    request = post(PREDICT, body, "Expect: 100-continue", "Connection: close")
    head = request[: -len(body)]
    with connect(server) as connection:
        connection.sendall(head)
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert parsed(read_all(connection))[0] == 200


def test_bytes_that_come_one_by_one(server):
    body = json.dumps({"instances": ROWS}).encode()
    with connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        for byte in post(PREDICT, body, "Connection: close"):
            connection.sendall(bytes([byte]))
        assert parsed(read_all(connection))[0] == 200


def test_200_clients_at_once(server):
    barrier = threading.Barrier(200)

    def ask(_):
        client = Client(server, timeout=60)
        barrier.wait()
        status, _ = client(PREDICT, {"instances": ROWS})
        retry = client.response.headers["Retry-After"]
        client.close()
        return status, retry

    with ThreadPoolExecutor(200) as pool:
        found = set(pool.map(ask, range(200)))
    assert (200, None) in found
    assert found <= {(200, None), (503, "1")}


@pytest.fixture
def small(tmp_path):
    """A server that takes two connections and works on one request."""
    _single.write(tmp_path / "1")
    limits = Limits(max_running=1, max_connections=2, timeout=5.0)
    with ModelServer({"double": tmp_path}, port=0, limits=limits) as server:
        yield server


def test_too_many_requests(small, monkeypatch):
    busy, go = threading.Event(), threading.Event()
    model = small._catalog.find("double", None)[1]
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
    assert client("/v1/models/double:predict", document)[0] == 200


def test_too_many_connections(tmp_path, monkeypatch):
    _single.write(tmp_path / "1")
    limits = Limits(max_connections=1)
    with ModelServer({"double": tmp_path}, port=0, limits=limits) as server:
        busy, go = threading.Event(), threading.Event()
        model = server._catalog.find("double", None)[1]
        run = model.run
        monkeypatch.setattr(
            model, "run", lambda *a: busy.set() or (go.wait(60) and run(*a))
        )
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(
                Client(server), "/v1/models/double:predict", {"instances": [1]}
            )
            assert busy.wait(60)
            with connect(server) as other:
                status, answer = parsed(read_all(other))
            assert status == 503 and "Too many connections" in answer["error"]
            go.set()
            assert first.result()[0] == 200


@pytest.mark.parametrize("value", ["[]", "{}", "1"])
def test_many_values_are_counted_before_they_are_parsed(ask, value):
    body = f'{{"instances": [{",".join([value] * 200_000)}'.encode()  # is no JSON
    for path in (PREDICT, "/v2/models/census/infer"):
        status, answer = ask(path, body=body)
        assert status == 413
        assert "commas and opening brackets; at most 100000 are" in answer["error"]


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

    monkeypatch.setattr(small._catalog.find("double", None)[1], "run", fail)
    status, answer = Client(small)("/v1/models/double:predict", {"instances": [1]})
    assert status == 503 and "memory does not suffice" in answer["error"]
    assert not caplog.text


def test_vectors_in_long_lists(tmp_path):
    column = skest.feature_columns.sequence_numeric_column("n", shape=4)
    rows = pd.DataFrame({"n": [[[1.0] * 4], [[2.0] * 4] * 2] * 5})
    model = skest.RNNRegressor(2, sequence_feature_columns=[column], max_iter=1)
    model.fit(rows, [0.0, 1.0] * 5).export(tmp_path)
    limits = Limits(max_cells=400)
    with ModelServer({"m": tmp_path}, port=0, limits=limits) as server:
        client = Client(server)
        for length, expected in ((10, 200), (11, 413)):
            instances = [{"n": [[1] * 4] * length}] + [{"n": []}] * 9
            status, found = client("/v1/models/m:predict", {"instances": instances})
            assert status == expected, found
        assert "rows of up to 11 vectors of 4 values" in found["error"]
        client.close()


BAGS = {
    "embedding": lambda words: skest.feature_columns.embedding_column(words, 3),
    "indicator": lambda words: skest.feature_columns.indicator_column(words),
}


@pytest.mark.parametrize("kind", BAGS)
def test_a_long_list_among_short_ones_takes_what_it_holds(tmp_path, kind):
    words = skest.feature_columns.categorical_column_with_vocabulary_list(
        "k", list("abcdefghi")
    )
    rows = pd.DataFrame({"k": [["a", "b"], ["c"]] * 5})
    model = skest.DNNClassifier((2,), feature_columns=[BAGS[kind](words)], max_iter=1)
    model.fit(rows, [0, 1] * 5).export(tmp_path)
    signatures = export.load(tmp_path).signatures
    # 20 * 60 places of strings, and for each row an embedding of 3 numbers or 9 words.
    enough = 4 * 1200 + (3 * 20 + 3 * 60 if kind == "embedding" else 9 * 20)
    enough += 20 * answer_numbers(signatures, "serving_default")
    for limit, expected in ((enough, 200), (enough - 1, 413)):
        limits = Limits(max_numbers=limit)
        with ModelServer({"m": tmp_path}, port=0, limits=limits) as server:
            client = Client(server)
            instances = [{"k": ["a"] * 60}] + [{"k": []}] * 19
            status, found = client("/v1/models/m:predict", {"instances": instances})
            assert status == expected, found
            client.close()
    assert (
        f"make {enough} numbers of the 20 rows, the largest part of ['k']"
        in found["error"]
    )


def test_a_failure_tells_nothing_of_the_request(small, monkeypatch, caplog):
    def fail(columns, _):
        raise RuntimeError(f"failed at {columns}")

    monkeypatch.setattr(small._catalog.find("double", None)[1], "run", fail)
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


@given(st.binary(max_size=50) | st.text(max_size=50).map(str.encode))
def test_any_head_is_read_or_refused(data):
    for head in (data, b"POST /v2 HTTP/1.1\r\nHost: x\r\n" + data):
        try:
            found = parse_head(head)
        except RequestError as error:
            assert error.status in (400, 411, 415, 417)
        else:
            assert found.size >= 0


def test_an_answer_of_many_classes_is_counted_before_it_is_made(tmp_path):
    classes = np.arange(500)
    model = skest.BaselineClassifier(max_iter=1).fit(classes[:, None] * 1.0, classes)
    model.export(tmp_path)
    limits = Limits(max_numbers=500 * 50 * 4)
    with ModelServer({"m": tmp_path}, port=0, limits=limits) as server:
        client = Client(server)
        for n_rows, expected in ((4, 200), (10, 413)):
            document = {"instances": [{"x": [0.0]}] * n_rows}
            status, found = client("/v1/models/m:predict", document)
            assert status == expected, found
        assert "of the 10 rows, the largest part in the answer" in found["error"]
        client.close()


@pytest.mark.parametrize("name", ["max_rows", "max_numbers", "max_running", "timeout"])
def test_limits_are_positive(name):
    with pytest.raises(ValueError, match=f"'{name}' must be positive; got 0"):
        Limits(**{name: 0})


def test_crosses_of_long_lists(tmp_path):
    rows = pd.DataFrame({"a": [["x", "y"], ["z"]] * 9, "b": [["p"], ["q", "r"]] * 9})
    column = skest.feature_columns.crossed_column(["a", "b"], 100)
    model = skest.LinearClassifier(feature_columns=[column], max_iter=1)
    model.fit(rows, [0, 1] * 9).export(tmp_path)
    with ModelServer(
        {"m": tmp_path}, port=0, limits=Limits(max_cells=10_000)
    ) as server:
        client = Client(server)
        for width, expected in ((100, 200), (101, 413)):
            example = {"a": ["x"] * width, "b": ["p"] * width}
            status, found = client("/v1/models/m:classify", {"examples": [example]})
            assert status == expected, found
        assert "['a', 'b'] are crossed" in found["error"]
        client.close()
