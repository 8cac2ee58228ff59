# SPDX-License-Identifier: Apache-2.0
"""A script as all tasks of a cluster."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skest.distributed.launch import main
from tests.distributed._processes import wait_for

ROOT = Path(__file__).parents[2]
TELL = """
    import json, os, sys
    config = json.loads(os.environ["SKEST_CONFIG"])
    print(json.dumps([config, sys.argv[1:], os.environ.get("OMP_NUM_THREADS"),
                      os.environ["SKEST_SECRET"]]))
    """


def write(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_each_task_is_told_who_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SKEST_SECRET", "of all")
    logs = tmp_path / "logs"
    options = ["--workers", "3", "--ps", "1", "--evaluator", "--log-dir", str(logs)]
    assert main([*options, write(tmp_path, TELL), "--rate", "3"]) == 0
    told = {path.stem: json.loads(path.read_text()) for path in logs.iterdir()}
    assert set(told) == {"chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"}
    addresses = [a for of in told["chief-0"][0]["cluster"].values() for a in of]
    assert len(set(addresses)) == 4
    for name, (config, arguments, threads, secret) in told.items():
        kind, index = name.split("-")
        assert config["task"] == {"type": kind, "index": int(index)}
        assert config["cluster"] == told["chief-0"][0]["cluster"]
        assert arguments == ["--rate", "3"]
        assert threads == ("1" if kind == "ps" else None)
        assert secret == "of all"


def test_who_goes_on_behind_the_chief_is_ended_if_there_are_servers(tmp_path, capsys):
    text = """
        import os, time
        if '"chief"' not in os.environ["SKEST_CONFIG"].partition('"task"')[2]:
            time.sleep(1 if SHORT else 1000)
            print("done")
        """
    logs = tmp_path / "logs"
    options = ["--grace", "0.2", "--log-dir", str(logs)]
    path = write(tmp_path, text.replace("SHORT", "False"))
    assert main([*options, path]) == 0
    told = capsys.readouterr().err
    for name in ("worker-0", "ps-0"):
        assert f"{name} did not end in 0.2 s after the chief, and is ended." in told
    path = write(tmp_path, text.replace("SHORT", "True"))
    assert main(["--ps", "0", *options, path]) == 0
    assert texts(logs)["worker-0"] == "done\n"


def test_a_task_that_dies_too_often_ends_all(tmp_path, capsys):
    text = """
        import os, time
        if '"worker"' in os.environ["SKEST_CONFIG"].partition('"task"')[2]:
            raise SystemExit(7)
        time.sleep(1000)
        """
    options = ["--max-restarts", "1", "--log-dir", str(tmp_path / "logs")]
    assert main([*options, write(tmp_path, text)]) == 1
    told = capsys.readouterr().err
    log = str(tmp_path / "logs" / "worker-0.log")
    assert f"status 7; what it wrote is in '{log}'; it is started again." in told
    assert f"status 7; what it wrote is in '{log}', after 1 restarts." in told


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_and_sigterm_let_tasks_save(tmp_path, number):
    text = """
        import time
        try:
            print("begin", flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            print("saved", flush=True)
        """
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "skest.distributed.launch", "--log-dir", str(logs)]
    launcher = subprocess.Popen(
        [*command, write(tmp_path, text)], cwd=ROOT, preexec_fn=heed_ctrl_c
    )
    expected = {"chief-0": "begin\n", "worker-0": "begin\n", "ps-0": "begin\n"}
    wait_for(lambda: texts(logs) == expected)
    os.kill(launcher.pid, number)
    assert launcher.wait(60) == 130
    saved = "begin\nsaved\n"
    assert texts(logs) == {**expected, "chief-0": saved, "worker-0": saved}


def heed_ctrl_c():
    """Undo what a shell does to commands with an ampersand."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def texts(logs):
    return {path.stem: path.read_text() for path in logs.glob("*.log")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workers", "0", "x.py"],
            "--workers: must be a number of at least 1; got 0",
        ),
        (
            ["--grace", "0", "x.py"],
            "--grace: must be a number of at least 0.001; got 0",
        ),
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--wrong", "x.py"], "unrecognized arguments: --wrong. See `"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
