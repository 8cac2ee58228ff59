# SPDX-License-Identifier: Apache-2.0
import errno
import os
import subprocess
import sys

import pytest

from skest import _files
from skest._files import flush_tree, flushed_meanwhile


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("a", "b", "inner/c"):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.fixture
def flushed(monkeypatch):
    """The paths that were flushed."""
    paths, flush = set(), _files.flush

    def noting(path):
        flush(path)
        paths.add(path)

    monkeypatch.setattr(_files, "flush", noting)
    return paths


def test_all_of_a_tree_is_flushed(tree, flushed):
    flush_tree(tree)
    assert flushed == {tree, *tree.rglob("*")}


def test_what_was_there_is_flushed_when_the_block_ends(tree, flushed):
    there = {tree, *tree.rglob("*")}
    with flushed_meanwhile(tree):
        pass
    assert flushed == there


AT_EXIT = """
import atexit, sys
from pathlib import Path
from skest._files import flush_tree, flushed_meanwhile

def at_exit():
    with flushed_meanwhile(Path(sys.argv[1])):
        flush_tree(Path(sys.argv[1]))
    print("flushed")

atexit.register(at_exit)
"""


def test_files_are_flushed_at_the_end_of_the_interpreter(tree):
    command = [sys.executable, "-c", AT_EXIT, str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["flushed"], done.stderr


def test_no_thread_can_begin(tree, flushed, monkeypatch):
    def refused(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(_files.Thread, "start", refused)
    with flushed_meanwhile(tree):
        pass
    assert not flushed


def test_errors_of_the_disk_are_raised(tree, monkeypatch):
    def failing(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        flush_tree(tree)
    with pytest.raises(OSError, match="Input/output error"), flushed_meanwhile(tree):
        pass
