# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import pytest

from benchmarks import peers

SCRIPT = """
import json, os, sys
arguments = json.load(open("arguments.json"))
result = {
    "arguments": arguments,
    "python": sys.prefix,
    "threads": os.environ["OMP_NUM_THREADS"],
    "path": os.environ.get("PYTHONPATH"),
    "files": sorted(os.listdir()),
    "array": open("x.npy", "rb").read(6).decode("latin-1"),
}
json.dump(result, open("result.json", "w"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEST_BENCH_ENVS", str(tmp_path / "envs"))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    return tmp_path


def test_a_script_runs_in_its_own_environment(folder):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = peers.Environment("empty")
    result = peers.run(environment, script, {"a": [1]}, {"x": np.ones(3)}, threads=2)
    assert result["arguments"] == {"a": [1]}
    assert result["python"] == str(environment.folder) == str(folder / "envs" / "empty")
    assert result["threads"] == "2"
    assert result["path"] is None
    assert result["files"] == ["arguments.json", "x.npy"]
    assert result["array"] == "\x93NUMPY"


def test_an_environment_is_made_once_for_the_same_requirements(folder, monkeypatch):
    calls = []
    monkeypatch.setattr(peers, "_check_call", lambda command: calls.append(command))
    made = peers.Environment("a", ("lib==1",))
    made.folder.mkdir(parents=True)
    for environment, n_calls in (
        (made, 2),
        (made, 2),
        (peers.Environment("a", ("lib==2",)), 4),
    ):
        environment.interpreter()
        assert len(calls) == n_calls
    assert calls[0][:3] == [sys.executable, "-m", "venv"]
    assert calls[1][-1] == "lib==1"
    assert calls[3][-1] == "lib==2"


def test_errors(folder):
    script = folder / "script.py"
    script.write_text("print('half way'); raise ValueError('the reason')")
    message = "(?s)script.py failed with status 1:.*half way.*ValueError: the reason"
    with pytest.raises(RuntimeError, match=message):
        peers.run(peers.Environment("empty"), script)
    with pytest.raises(
        RuntimeError, match=r"'old' needs Python 2\.6, .* no python2\.6"
    ):
        peers.Environment("old", python="2.6").interpreter()
