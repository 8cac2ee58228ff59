# SPDX-License-Identifier: Apache-2.0
import hashlib
import shutil
import threading

import pytest

from skest.export.artifact import MANIFEST
from skest.export.runtime import load
from skest.export.serving.requests import Catalog, Served
from skest.export.serving.server import ModelServer
from tests.export.serving import _single
from tests.export.serving._clients import Client, until


class Loads:
    """Counts how often a version is loaded."""

    def __init__(self, error=None):
        self.count = 0
        self.error = error

    def __call__(self, path):
        self.count += 1
        if self.error:
            raise self.error
        return load(path)


def number(served):
    served.refresh()
    return served.newest and served.newest[0]


def test_the_newest_is_served(tmp_path):
    loads = Loads()
    served = Served(tmp_path, loads)
    assert number(served) is None
    for name, expected in (("3", 3), ("1", 3), ("5", 5), ("4", 5)):
        _single.write(tmp_path / name)
        assert number(served) == number(served) == expected
    assert loads.count == 2
    shutil.rmtree(tmp_path / "5")  # until there is a newer one
    assert number(served) == 5
    _single.write(tmp_path / "6")
    assert number(served) == 6


def manifest_last(source, target):
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(MANIFEST))
    yield
    shutil.copy(source / MANIFEST, target)


def model_in_pieces(source, target):
    shutil.copytree(source, target)
    data = (source / "model.onnx").read_bytes()
    for piece in (b"", data[:10], data[:-1], bytes(len(data))):
        (target / "model.onnx").write_bytes(piece)
        yield
    (target / "model.onnx").write_bytes(data)


@pytest.mark.parametrize("copy", [manifest_last, model_in_pieces])
def test_half_copied_versions_are_never_served(tmp_path, copy, caplog):
    source = _single.write(tmp_path / "source")
    base = tmp_path / "base"
    _single.write(base / "1")
    served = Served(base, loads := Loads())
    assert number(served) == 1
    for _ in copy(source, base / "2"):
        before = loads.count
        assert number(served) == number(served) == 1
        assert list(served.refused) == [2]
        assert loads.count == before + 1  # looked at again only if its files changed
        assert "Version 2 is not served: " in caplog.text
    assert number(served) == 2
    assert served.refused == {}


def test_what_is_no_fault_of_the_files_is_tried_at_every_look(tmp_path):
    _single.write(tmp_path / "1")
    for error, count in ((OSError("out of reach"), 2), (KeyError("dtype"), 1)):
        served = Served(tmp_path, loads := Loads(error))
        assert number(served) is number(served) is None
        assert loads.count == count
    shutil.rmtree(tmp_path / "1")
    served.refresh()
    assert served.refused == {}


def test_wrong_arguments(tmp_path):
    for name in ("", "..", "a:b", "x" * 129):
        with pytest.raises(ValueError, match="name of a model must be of letters"):
            Catalog({name: tmp_path}, load)
    with pytest.raises(FileNotFoundError, match="There is no directory"):
        Catalog({"a": tmp_path / "x"}, load)
    with pytest.raises(ValueError, match="'poll_seconds' must be positive; got 0"):
        ModelServer({"a": tmp_path}, port=0, poll_seconds=0)


def test_before_the_first_version_the_server_is_not_ready(tmp_path, caplog):
    with ModelServer({"double": tmp_path}, port=0, poll_seconds=0.02) as server:
        assert "The directory of double has no version to be served" in caplog.text
        ask = Client(server)
        for path in ("/v2/health/ready", "/v2/models/double/ready"):
            status, answer = ask(path)
            assert status == 503
        assert "No version of 'double' is loaded" in answer["error"]
        assert ask.response.headers["Retry-After"] == "1"
        assert ask("/v2/health/live")[0] == 200
        assert ask("/v1/models/double")[1] == {"model_version_status": []}
        (tmp_path / "1").mkdir()
        until(lambda: ask("/v1/models/double")[1]["model_version_status"])
        (state,) = ask("/v1/models/double")[1]["model_version_status"]
        assert state["state"] == "END" and "log of the server" in str(state["status"])
        _single.write(tmp_path / "1")
        until(lambda: ask("/v2/health/ready")[0] == 200)


def test_new_versions_come_while_clients_ask(tmp_path):
    """No request fails, and what is answered never goes back to an older version."""
    _single.write(tmp_path / "1", 1.0)
    done = threading.Event()
    found = []

    def hammer(server):
        ask, last, is_last = Client(server), 0.0, False
        while not is_last:
            is_last = done.is_set()
            status, answer = ask("/v1/models/factor:predict", {"instances": [1]})
            assert status == 200
            (value,) = answer["predictions"][0]
            assert value >= last
            last = value
        ask.close()
        found.append(last)

    with ModelServer({"factor": tmp_path}, port=0, poll_seconds=0.01) as server:
        threads = [threading.Thread(target=hammer, args=(server,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for version in range(2, 5):
            temporary = _single.write(tmp_path / f".tmp-{version}", float(version))
            for _ in model_in_pieces(temporary, tmp_path / str(version)):
                pass
            shutil.rmtree(tmp_path / str(version - 1))
            until(lambda version=version: served_by(server) == [version])
        done.set()
        for thread in threads:
            thread.join()
    assert found == [4.0] * 4


def served_by(server):
    _, answer = Client(server)("/v1/models/factor")
    states = answer["model_version_status"]
    return [int(s["version"]) for s in states if s["state"] == "AVAILABLE"]


def test_only_trusted_versions_are_served(tmp_path):
    known = hashlib.sha256((_single.write(tmp_path / "1") / MANIFEST).read_bytes())
    _single.write(tmp_path / "2", files={})
    path = tmp_path / "2" / MANIFEST
    path.write_text(path.read_text() + " ")
    digest = known.hexdigest()
    with ModelServer({"m": tmp_path}, port=0, trusted_manifest_sha256=digest) as server:
        _, found = Client(server)("/v1/models/m")
    states = {s["version"]: s["state"] for s in found["model_version_status"]}
    assert states == {"1": "AVAILABLE", "2": "END"}


def test_a_directory_that_is_out_of_reach(tmp_path, monkeypatch, caplog):
    _single.write(tmp_path / "1")
    catalog = Catalog({"a": tmp_path, "b": tmp_path}, load)

    def fail():
        raise PermissionError("not yours")

    monkeypatch.setattr(catalog.models["a"], "refresh", fail)
    catalog.refresh()
    assert "No look for versions of a: not yours" in caplog.text
    assert catalog.waiting == ["a"] and not catalog.ready
