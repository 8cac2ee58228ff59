# SPDX-License-Identifier: Apache-2.0
"""Tasks are started, restarted and ended."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skest.distributed.supervisor import Supervisor, Task
from skest.exceptions import TaskFailedError
from tests.distributed._processes import SECONDS, is_running, is_stopped, wait_for

ROOT = Path(__file__).parents[2]
FOREVER = "import time\nwhile True: time.sleep(0.01)"


def script(directory, text):
    path = directory / f"script{len(list(directory.iterdir()))}.py"
    path.write_text(textwrap.dedent(text))
    return ["--script", str(path)]


def test_tasks_that_end_well_are_not_restarted(tmp_path):
    hello = script(tmp_path, "import sys; print(__name__, sys.argv[1:])")
    with Supervisor(log_dir=tmp_path / "logs") as supervisor:
        supervisor.start(Task("one", [*hello, "a"]))
        supervisor.start(Task("two", [*hello, "--b", "c"]))
        assert supervisor.wait(SECONDS)
        assert supervisor.restarts == {"one": 0, "two": 0}
        assert supervisor.pids == {}
    assert (tmp_path / "logs" / "one.log").read_text() == "__main__ ['a']\n"
    assert (tmp_path / "logs" / "two.log").read_text() == "__main__ ['--b', 'c']\n"


@pytest.mark.slow
def test_some_tasks_are_ended_for_good(tmp_path):
    """Also one that does not heed SIGTERM; it is not started again."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write('begun ')\n"
    with Supervisor() as supervisor:
        supervisor.start(Task("deaf", script(tmp_path, stubborn + mark + FOREVER)))
        supervisor.start(Task("other", script(tmp_path, FOREVER)))
        supervisor.start(Task("done", script(tmp_path, "")))
        assert supervisor.wait(SECONDS, ["done"])
        wait_for((tmp_path / "mark").exists)
        assert not supervisor.wait(0.1, ["deaf", "done"])
        assert supervisor.end(["deaf", "done"]) == ["deaf"]
        assert supervisor.pids.keys() == {"other"}
        assert supervisor.restarts == {"deaf": 0, "other": 0, "done": 0}
        assert supervisor.end(["deaf", "done"]) == []
    assert (tmp_path / "mark").read_text() == "begun "


def test_a_script_sees_its_directory_and_environment(tmp_path):
    (tmp_path / "neighbour.py").write_text("value = 5")
    task = script(tmp_path, "import neighbour, os; print(os.environ['X'], input)")
    with Supervisor(log_dir=tmp_path / "logs") as supervisor:
        supervisor.start(Task("one", task, environ={"X": "y"}))
        supervisor.wait(SECONDS)
    assert (tmp_path / "logs" / "one.log").read_text().startswith("y ")


def test_a_killed_task_is_restarted_and_the_log_goes_on(tmp_path):
    text = """
        import os, pathlib, signal
        print("begin", flush=True)
        mark = pathlib.Path(os.environ["MARK"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        """
    task = Task("one", script(tmp_path, text), environ={"MARK": str(tmp_path / "mark")})
    with Supervisor(log_dir=tmp_path / "logs") as supervisor:
        supervisor.start(task)
        assert supervisor.wait(SECONDS)
        assert supervisor.restarts == {"one": 1}
    assert (tmp_path / "logs" / "one.log").read_text() == "begin\nbegin\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_task_that_is_stopped_for_good_is_killed_and_restarted(tmp_path, caplog):
    with Supervisor(max_restarts=1, lease=0.5) as supervisor:
        supervisor.start(Task("one", script(tmp_path, FOREVER)))
        pids = []
        for _ in range(2):
            wait_for(lambda: supervisor.pids.get("one") not in [None, *pids])
            pids.append(supervisor.pids["one"])
            for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
                os.kill(pids[-1], number)
                wait_for(lambda n=number: is_stopped(pids[-1]) == (n == signal.SIGSTOP))
        with pytest.raises(TaskFailedError, match="SIGKILL, after 1 restarts"):
            supervisor.wait(SECONDS)
    assert caplog.messages.count("one stands still for 0.5 s: it is killed.") == 2
    assert not any(map(is_running, pids))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_task_that_goes_on_before_its_lease_ends_is_let_alone(tmp_path, caplog):
    with Supervisor(lease=1.0) as supervisor:
        supervisor.start(Task("one", script(tmp_path, FOREVER)))
        wait_for(lambda: supervisor.pids)
        pid = supervisor.pids["one"]
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: is_stopped(pid))
            assert not supervisor.wait(0.3)
            os.kill(pid, signal.SIGCONT)
            assert not supervisor.wait(0.3)
        assert not supervisor.wait(1.0)
        assert supervisor.pids == {"one": pid}
    assert not caplog.messages


def test_each_task_has_its_own_budget(tmp_path):
    failing = script(tmp_path, "print('hello'); raise SystemExit(3)")
    forever = script(tmp_path, FOREVER)
    with Supervisor(max_restarts=1) as supervisor:
        supervisor.start(Task("forever", forever))
        supervisor.start(Task("failing", failing))
        with pytest.raises(
            TaskFailedError, match="failing ended with exit status 3"
        ) as e:
            supervisor.wait(SECONDS)
        assert "after 1 restarts. Its last lines are:\n  hello" in str(e.value)
        assert supervisor.restarts == {"forever": 0, "failing": 1}
        with pytest.raises(TaskFailedError):
            supervisor.check()
        pid = supervisor.pids["forever"]
    assert not is_running(pid)


def test_waiting_has_a_limit_and_may_be_for_some(tmp_path):
    with Supervisor() as supervisor:
        supervisor.start(Task("forever", script(tmp_path, FOREVER)))
        supervisor.start(Task("short", script(tmp_path, "")))
        assert supervisor.wait(SECONDS, ["short"])
        assert not supervisor.wait(0.01)


def test_stopping_ends_what_tasks_have_started_and_those_that_refuse(tmp_path):
    text = f"""
        import pathlib, signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", {FOREVER!r}])
        pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
        child.wait()
        """
    child = tmp_path / "child"
    with Supervisor() as supervisor:
        supervisor.start(Task("one", script(tmp_path, text)))
        wait_for(lambda: child.exists() and child.read_text())
        pids = [supervisor.pids["one"], int(child.read_text())]
        assert all(map(is_running, pids))
    wait_for(lambda: not any(map(is_running, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("stopped", [False, True])
def test_no_task_survives_a_killed_parent(tmp_path, stopped):
    begun = tmp_path / "begun"
    busy = script(
        tmp_path,
        f"""
        with open({str(begun)!r}, "a") as file: file.write("begun ")
        while True: pass
        """,
    )
    text = f"""
        import time
        from skest.distributed.supervisor import Supervisor, Task
        supervisor = Supervisor()
        for name in ("one", "two"):
            supervisor.start(Task(name, {busy!r}))
        while len(supervisor.pids) < 2: time.sleep(0.01)
        print(*supervisor.pids.values(), flush=True)
        time.sleep(1000)
        """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, cwd=ROOT
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        wait_for(lambda: begun.exists() and begun.read_text() == "begun begun ")
        assert all(map(is_running, pids))
        if stopped:
            os.kill(pids[0], signal.SIGSTOP)
        parent.kill()
    wait_for(lambda: not any(map(is_running, pids)))


def test_ctrl_c_reaches_tasks_when_they_are_interrupted(tmp_path):
    text = """
        import time
        try:
            print("begin", flush=True)
            while True: time.sleep(0.01)
        except KeyboardInterrupt:
            print("saved", flush=True)
            raise
        """
    log = tmp_path / "logs" / "one.log"
    with Supervisor(log_dir=tmp_path / "logs") as supervisor:
        supervisor.start(Task("one", script(tmp_path, text)))
        wait_for(lambda: log.exists() and log.read_text() == "begin\n")
        supervisor.interrupt(["one"])
        assert supervisor.wait(SECONDS)
        assert supervisor.restarts == {"one": 0}
    assert log.read_text().startswith("begin\nsaved\n")
