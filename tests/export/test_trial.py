# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

pytest.importorskip("onnxruntime")
from skest import export
from skest.exceptions import ArtifactError
from skest.export import runtime
from tests.export import _hostile, _models
from tests.export.serving import _single
from tests.export.serving._clients import Client


def test_a_version_that_passes_runs_here(tmp_path):
    model = export.load(_single.write(tmp_path / "1"), trial=True)
    assert model(x=[3.0])["outputs"].tolist() == [[6.0]]
    recorded = _models.warmup()
    recorded["outputs"]["labels"] = [["no"], ["yes"]]
    version = _models.write(tmp_path / "2", recorded=recorded)
    with pytest.raises(ArtifactError, match="^The model gives other 'labels' here"):
        export.load(version, trial=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("ends", "ends the process with the status -"),
        ("memory", "takes more than [0-9]+ bytes of memory; if you trust it"),
        pytest.param(
            "time", "takes more than 1 seconds; if you trust", marks=pytest.mark.slow
        ),
    ],
)
def test_what_takes_too_much_is_refused(tmp_path, monkeypatch, kind, what):
    monkeypatch.setattr(runtime, "SECONDS", 1)
    monkeypatch.setattr(runtime, "MEMORY", 2**30)
    with pytest.raises(ArtifactError, match=f"a process of its own, it {what}"):
        export.load(_hostile.write(tmp_path / "1", kind), trial=True)


def test_a_server_outlives_a_version_that_would_end_it(tmp_path, caplog):
    _single.write(tmp_path / "1")
    _hostile.write(tmp_path / "2", "ends")
    with export.ModelServer({"double": tmp_path}, port=0) as server:
        ask = Client(server)
        answer = ask("/v1/models/double:predict", {"instances": [1]})
        assert answer == (200, {"predictions": [[2.0]]})
        _, found = ask("/v1/models/double")
        ask.close()
    states = {s["version"]: s["state"] for s in found["model_version_status"]}
    assert states == {"1": "AVAILABLE", "2": "END"}
    assert "tried in a process of its own, it ends the process" in caplog.text
