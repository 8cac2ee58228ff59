# SPDX-License-Identifier: Apache-2.0
"""Jobs for other processes."""

import functools
import threading

import numpy as np
import pandas as pd
import pytest

from skest.distributed.job import read_job, write_job


def total(**values):
    return values


def there_and_back(**values):
    with write_job(total, values) as file:
        return read_job(file.fileno())()


def test_data_come_back():
    table = pd.DataFrame({"x": [1.5, 2.5], "y": ["a", None]})
    array = np.arange(12.0).reshape(3, 4)
    back = there_and_back(table=table, arrays={"a": array, "empty": array[:0]}, n=3)
    pd.testing.assert_frame_equal(back["table"], table)
    np.testing.assert_array_equal(back["arrays"]["a"], array)
    assert back["arrays"]["empty"].shape == (0, 4)
    assert back["n"] == 3


def test_arrays_are_not_copied_and_belong_to_the_reader():
    array = np.zeros(1_000_000)
    with write_job(total, {"array": array}) as file:
        first, second = (read_job(file.fileno())()["array"] for _ in range(2))
    first[0] = 1  # as the original could be
    assert second[0] == array[0] == 0
    assert not first.flags.owndata
    assert first.ctypes.data % 64 == 0


def test_what_is_defined_in_a_function_travels():
    class Local:
        value = 3

    back = there_and_back(made=Local(), function=lambda n: Local.value * n)
    assert back["made"].value == 3
    assert back["function"](2) == 6


class Holder:
    def __init__(self):
        self.lock = threading.Lock()

    def method(self):
        return self.lock


def closure():
    lock = threading.Lock()
    return lambda: lock


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (threading.Lock(), "^'x' can't be sent"),
        ({"a": [0, threading.Lock()]}, "^element 1 of item 'a' of 'x' can't"),
        (closure(), "^variable 'lock' of 'x' can't"),
        (Holder(), "^attribute 'lock' of 'x' can't"),
        (Holder().method, "^attribute 'lock' of the object of 'x' can't"),
        (
            functools.partial(total, a=closure()),
            "^variable 'lock' of item 'a' of the arg",
        ),
        ((i for i in range(3)), "^'x' can't be sent .* of type generator"),
    ],
)
def test_what_cannot_be_sent_is_named(value, path):
    with pytest.raises(TypeError, match=path) as raised:
        write_job(total, {"fine": 1, "x": value})
    assert "leave out 'train_distribute'" in str(raised.value)
