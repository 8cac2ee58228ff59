# SPDX-License-Identifier: Apache-2.0
"""Jobs for other processes."""

import os

import numpy as np
import pandas as pd
import pytest

from skest.distributed.processes import anonymous_file, read_job, write_job


def total(**values):
    return values


def test_data_and_what_is_defined_in_a_function_travel():
    class Local:
        value = 3

    table = pd.DataFrame({"x": [1.5, 2.5], "y": ["a", None]})
    array = np.arange(12.0).reshape(3, 4)
    given = {"table": table, "arrays": {"a": array, "empty": array[:0]}, "n": 3}
    given |= {"made": Local(), "function": lambda n: Local.value * n}
    with write_job(total, given) as file:
        back = read_job(file.fileno())()
    pd.testing.assert_frame_equal(back["table"], table)
    np.testing.assert_array_equal(back["arrays"]["a"], array)
    assert back["arrays"]["empty"].shape == (0, 4)
    assert back["n"] == back["made"].value == 3
    assert back["function"](2) == 6


def test_files_have_no_name_and_their_room(monkeypatch):
    with anonymous_file(1000) as file:
        assert os.fstat(file.fileno()).st_size == 1000
        assert os.fstat(file.fileno()).st_nlink == 0

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="needs 4,096 bytes in .*TMPDIR"):
        anonymous_file(4096)
