# SPDX-License-Identifier: Apache-2.0
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from skest import _temporary
from skest._file_locks import acquire
from skest._temporary import owned_directory, sweep
from skest.versioned_directory import write_version

OWNER = """
import sys, time
from pathlib import Path
from skest._temporary import owned_directory
with owned_directory(Path(sys.argv[1])) as path:
    (path / "half").write_text("written")
    print("ready", flush=True)
    time.sleep(60)
"""

DYING = """
import os, sys
from pathlib import Path
from skest import _temporary
{} = lambda *args, **kwargs: os._exit(9)
with _temporary.owned_directory(Path(sys.argv[1])) as path:
    path.rename(path.with_name("1"))
"""


@pytest.fixture
def owner(tmp_path):
    """A process that writes into a directory of its own."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().strip() == b"ready"
        yield process
        process.kill()


def aged(path, seconds):
    then = time.time() - seconds
    for found in [*path.rglob("*"), path]:
        os.utime(found, (then, then))


def names(base):
    return sorted(path.name for path in base.iterdir())


def test_nothing_is_left(tmp_path):
    with owned_directory(tmp_path) as path:
        (path / "a").write_text("x")
        sweep(tmp_path)
        assert (path / "a").exists()
    assert names(tmp_path) == []


def test_what_is_published_stays(tmp_path):
    with owned_directory(tmp_path) as path:
        path.rename(tmp_path / "1")
    assert names(tmp_path) == ["1"]


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_what_a_killed_process_left_is_swept(tmp_path, owner):
    before = names(tmp_path)
    assert len(before) == 2
    sweep(tmp_path)
    assert names(tmp_path) == before  # its owner lives
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    write_version(tmp_path, lambda path: None, lambda: 7)
    assert names(tmp_path) == ["7"]


@pytest.mark.parametrize("is_held", [True, False])
# Nothing is written in it yet between the moments it is made and locked.
@pytest.mark.parametrize("content", [socket.gethostname(), ""])
def test_a_lock_alone_is_swept_when_nobody_holds_it(tmp_path, content, is_held):
    lock = tmp_path / ".tmp-abc.lock"
    lock.write_text(content)
    with lock.open("r+b") as file:
        if is_held:
            acquire(file)
        sweep(tmp_path)
    assert lock.exists() == is_held


@pytest.mark.parametrize(
    "last",
    [
        "_temporary.acquire",
        "_temporary.socket.gethostname",
        "Path.mkdir",
        "Path.rename",
        "_temporary.shutil.rmtree",
        "Path.unlink",
    ],
)
def test_nothing_is_left_wherever_a_process_ended(tmp_path, last):
    command = [sys.executable, "-c", DYING.format(last), str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 9
    assert any(name.startswith(".tmp-") for name in names(tmp_path))
    sweep(tmp_path)
    assert set(names(tmp_path)) <= {"1"}


def test_a_directory_whose_lock_is_empty_is_kept(tmp_path):
    (tmp_path / ".tmp-abc").mkdir()
    (tmp_path / ".tmp-abc.lock").touch()
    sweep(tmp_path)
    assert names(tmp_path) == [".tmp-abc", ".tmp-abc.lock"]


def test_an_owner_whose_lock_was_taken_for_given_up_goes_on(tmp_path, monkeypatch):
    def too_late(file, wait):
        monkeypatch.setattr(_temporary, "acquire", acquire)
        sweep(tmp_path)
        assert names(tmp_path) == []

    monkeypatch.setattr(_temporary, "acquire", too_late)
    with owned_directory(tmp_path) as path:
        sweep(tmp_path)
        assert names(tmp_path) == [path.name]
    assert names(tmp_path) == []


def test_an_owner_has_its_lock_though_another_sweep_looks_at_it(tmp_path, monkeypatch):
    timers = []

    def looked_at(file, wait=False):
        monkeypatch.setattr(_temporary, "acquire", acquire)
        sweeping = open(file.name, "r+b")
        acquire(sweeping)
        timers.append(threading.Timer(0.1, sweeping.close))
        timers[0].start()
        acquire(file, wait)

    monkeypatch.setattr(_temporary, "acquire", looked_at)
    with owned_directory(tmp_path) as path:
        timers[0].join()
        sweep(tmp_path)
        assert len(names(tmp_path)) == 2
        assert path.exists()


def test_what_another_machine_left_is_swept_after_a_day(tmp_path, monkeypatch, owner):
    monkeypatch.setattr(_temporary.socket, "gethostname", lambda: "another")
    owner.kill()
    owner.wait()
    sweep(tmp_path)
    assert len(names(tmp_path)) == 2
    for path in tmp_path.iterdir():
        aged(path, 86500)
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_other_leftovers_are_swept_after_a_day(tmp_path):
    (tmp_path / ".tmp-17-abc").mkdir()
    (tmp_path / ".tmp-17-abc" / "file").write_text("x")
    (tmp_path / ".tmp-best.json-abc").write_text("x")
    (tmp_path / "mine").write_text("x")
    sweep(tmp_path)
    assert len(names(tmp_path)) == 3
    for path in tmp_path.iterdir():
        aged(path, 86500)
    sweep(tmp_path)
    assert names(tmp_path) == ["mine"]


def test_without_locks_a_directory_is_held_for_a_day(tmp_path, monkeypatch):
    def no_locks(file, wait=False):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(_temporary, "acquire", no_locks)
    with owned_directory(tmp_path) as path:
        sweep(tmp_path)
        assert path.exists()
