# SPDX-License-Identifier: Apache-2.0
import os
import time
from pathlib import Path

import pytest

from skest.core.files import list_versions, remove_old_versions, write_version
from tests._models import FakeClock


def write(directory):
    (directory / "inner").mkdir()
    (directory / "inner" / "file").write_text("content")


def names(base):
    return [path.name for path in list_versions(base)]


def test_a_version_is_named_after_the_time(tmp_path):
    base = tmp_path / "new" / "base"
    assert list_versions(base) == []
    version = write_version(base, write, FakeClock(1700000000.9))
    assert version == base / "1700000000"
    assert (version / "inner" / "file").read_text() == "content"
    assert [path.name for path in base.iterdir()] == ["1700000000"]


def test_numbers_grow_whatever_the_clock_says(tmp_path):
    for now in (50, 50, 7, 99.5):
        write_version(tmp_path, write, FakeClock(now))
    assert names(tmp_path) == ["50", "51", "52", "99"]


def test_other_entries_are_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "123").write_text("a file")
    write_version(tmp_path, write, FakeClock(5))
    remove_old_versions(tmp_path, 1)
    assert names(tmp_path) == ["5"]
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "123", "5"}


def test_an_error_leaves_nothing(tmp_path):
    def failing(directory):
        write(directory)
        raise KeyError("of the writer")

    with pytest.raises(KeyError, match="of the writer"):
        write_version(tmp_path, failing)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_go_after_a_day(tmp_path):
    for name in (".tmp-of-yesterday", ".tmp-of-today"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("x")
    then = time.time() - 86500
    os.utime(tmp_path / ".tmp-of-yesterday", (then, then))
    write_version(tmp_path, write, FakeClock(5))
    assert {path.name for path in tmp_path.iterdir()} == {".tmp-of-today", "5"}


def test_a_number_that_another_process_took_meanwhile(tmp_path, monkeypatch):
    rename, others = Path.rename, iter([True, True, False])

    def racing(path, target):
        if next(others):
            write_version_of_another(target)
        return rename(path, target)

    def write_version_of_another(target):
        target.mkdir()
        write(target)

    monkeypatch.setattr(Path, "rename", racing)
    assert write_version(tmp_path, write, FakeClock(5)).name == "7"
    assert names(tmp_path) == ["5", "6", "7"]
