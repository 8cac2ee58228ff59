# SPDX-License-Identifier: Apache-2.0
import functools
import hashlib
import json
import shutil
import threading

import pytest

from skest.export.manifest import MANIFEST
from skest.export.serving.server import ModelServer
from skest.export.serving.versions import Catalog, ModelVersions
from tests.export.serving import _single
from tests.export.serving._clients import Client, until


def served(versions):
    versions.refresh()
    return list(versions.served)


def test_the_newest_are_served(tmp_path):
    versions = ModelVersions(tmp_path, keep=2)
    assert served(versions) == []
    _single.write(tmp_path / "3")
    first = versions.refresh() or versions.served[3]
    for number in ("1", "5", "4"):
        _single.write(tmp_path / number)
    (tmp_path / "notes").mkdir()
    assert served(versions) == [5, 4]
    assert first is not versions.served[5]
    kept = dict(versions.served)
    versions.refresh()
    assert all(versions.served[number] is model for number, model in kept.items())


def test_a_removed_version_is_served_until_there_is_a_newer_one(tmp_path):
    versions = ModelVersions(tmp_path, keep=2)
    for number in ("1", "2", "3"):
        _single.write(tmp_path / number)
    assert served(versions) == [3, 2]
    shutil.rmtree(tmp_path / "3")
    assert served(versions) == [3, 2]
    shutil.rmtree(tmp_path / "2")
    assert served(versions) == [3, 1]
    shutil.rmtree(tmp_path / "1")
    assert served(versions) == [3]
    _single.write(tmp_path / "4")
    assert served(versions) == [4]


class Loads:
    """Counts how often a version is loaded."""

    def __init__(self, error=None):
        self.count = 0
        self.error = error

    def __call__(self, path):
        from skest.export.runtime import load

        self.count += 1
        if self.error:
            raise self.error
        return load(path)


def manifest_last(source, target):
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(MANIFEST))
    yield
    shutil.copy(source / MANIFEST, target)


def model_in_pieces(source, target):
    shutil.copytree(source, target)
    data = (source / "model.onnx").read_bytes()
    for end in (0, 10, len(data) - 1):
        (target / "model.onnx").write_bytes(data[:end])
        yield
    (target / "model.onnx").write_bytes(data)


def zeros_first(source, target):
    shutil.copytree(source, target)
    data = (source / "model.onnx").read_bytes()
    (target / "model.onnx").write_bytes(bytes(len(data)))
    yield
    (target / "model.onnx").write_bytes(data)


@pytest.mark.parametrize("copy", [manifest_last, model_in_pieces, zeros_first])
def test_half_copied_versions_are_never_served(tmp_path, copy, caplog):
    source = _single.write(tmp_path / "source")
    base = tmp_path / "base"
    _single.write(base / "1")
    loads = Loads()
    versions = ModelVersions(base, load=loads)
    assert served(versions) == [1]
    for _ in copy(source, base / "2"):
        before = loads.count
        assert served(versions) == served(versions) == [1]
        assert list(versions.refused) == [2]
        assert loads.count == before + 1  # looked at again only if its files changed
        assert "Version 2 is not served: " in caplog.text
    assert served(versions) == [2, 1]
    assert versions.refused == {}


def test_a_version_that_gives_other_answers_is_not_served(tmp_path):
    _single.write(tmp_path / "1")
    _single.write(tmp_path / "2", files={})
    recorded = json.loads((tmp_path / "2" / "warmup.json").read_text())
    recorded["outputs"]["outputs"][0] = [7.0]
    _single.write(tmp_path / "2")
    from tests.export import _models

    described = json.loads((tmp_path / "2" / MANIFEST).read_text())
    data = (tmp_path / "2" / "model.onnx").read_bytes()
    _models.write(tmp_path / "2", data, described, recorded)
    versions = ModelVersions(tmp_path)
    assert served(versions) == [1]
    assert list(versions.refused) == [2]


def test_what_is_no_fault_of_the_files_is_tried_at_every_look(tmp_path, caplog):
    _single.write(tmp_path / "1")
    loads = Loads(OSError("out of reach"))
    versions = ModelVersions(tmp_path, load=loads)
    assert served(versions) == served(versions) == []
    assert loads.count == 2
    versions = ModelVersions(tmp_path, load=(loads := Loads(KeyError("dtype"))))
    assert served(versions) == served(versions) == []
    assert loads.count == 1
    shutil.rmtree(tmp_path / "1")
    versions.refresh()
    assert versions.refused == {}


def test_a_directory_that_is_out_of_reach(tmp_path, monkeypatch, caplog):
    _single.write(tmp_path / "1")
    catalog = Catalog({"a": tmp_path, "b": tmp_path})

    def fail():
        raise PermissionError("not yours")

    monkeypatch.setattr(catalog.models["a"], "refresh", fail)
    catalog.refresh()
    assert "No look for versions of a: not yours" in caplog.text
    assert not catalog.ready and list(catalog.models["b"].served) == [1]


@pytest.mark.parametrize("name", ["", "..", "a:b", "x" * 129])
def test_names_that_could_not_stand_in_an_address(tmp_path, name):
    with pytest.raises(ValueError, match="name of a model must be of letters"):
        Catalog({name: tmp_path})


def test_wrong_arguments(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no directory"):
        Catalog({"a": tmp_path / "x"})
    with pytest.raises(ValueError, match="'keep' must be 1 or more; got 0"):
        Catalog({"a": tmp_path}, keep=0)
    with pytest.raises(ValueError, match="'poll_seconds' must be positive; got 0"):
        ModelServer({"a": tmp_path}, port=0, poll_seconds=0)


def test_before_the_first_version_the_server_is_not_ready(tmp_path, caplog):
    with ModelServer({"double": tmp_path}, port=0, poll_seconds=0.02) as server:
        assert "The directory of double has no version that can be" in caplog.text
        ask = Client(server)
        for path in (
            "/v2/health/ready",
            "/v2/models/double/ready",
            "/v2/models/double",
        ):
            status, answer = ask(path)
            assert status == 503
        assert "No version of 'double' is loaded" in answer["error"]
        assert ask.response.headers["Retry-After"] == "1"
        assert ask("/v2/health/live")[0] == 200
        assert ask("/v1/models/double")[1] == {"model_version_status": []}
        (tmp_path / "1").mkdir()
        until(lambda: ask("/v1/models/double")[1]["model_version_status"])
        (state,) = ask("/v1/models/double/versions/1")[1]["model_version_status"]
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
        threads = [
            threading.Thread(target=functools.partial(hammer, server)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for number in range(2, 5):
            temporary = _single.write(tmp_path / f".tmp-{number}", float(number))
            for _ in model_in_pieces(temporary, tmp_path / str(number)):
                pass
            shutil.rmtree(tmp_path / str(number - 1))
            until(lambda number=number: max(_served(server)) == number)
        done.set()
        for thread in threads:
            thread.join()
    assert found == [4.0] * 4


def _served(server):
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
    with ModelServer({"m": tmp_path}, port=0, max_bytes=10) as server:
        assert not server.ready
