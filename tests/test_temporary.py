# SPDX-License-Identifier: Apache-2.0
import os
import signal
import socket
import subprocess
import sys
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
def test_a_lock_alone_is_swept_when_nobody_holds_it(tmp_path, is_held):
    lock = tmp_path / ".tmp-abc.lock"
    lock.write_text(socket.gethostname())
    with lock.open("r+b") as file:
        if is_held:
            acquire(file)
        sweep(tmp_path)
    assert lock.exists() == is_held


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
    def no_locks(file):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(_temporary, "acquire", no_locks)
    with owned_directory(tmp_path) as path:
        sweep(tmp_path)
        assert path.exists()
