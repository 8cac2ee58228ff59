# SPDX-License-Identifier: Apache-2.0
import pytest

from skest.distributed.ps.worker import LookAhead


def test_what_was_seen_is_what_comes():
    batches = LookAhead(iter([(i, i) for i in range(4)]))
    assert next(batches) == (0, 0)
    assert batches.peek() == batches.peek() == (1, 1)
    assert list(batches) == [(i, i) for i in range(1, 4)]
    assert batches.peek() is None
    assert list(batches) == []


def test_no_more_is_read_than_was_looked_at():
    source = iter([(i, i) for i in range(4)])
    batches = LookAhead(source)
    next(batches)
    batches.peek()
    assert next(source) == (2, 2)


def test_an_error_is_raised_in_the_place_of_its_batch():
    def fail():
        yield 0, 0
        raise OSError("the file is gone")

    batches = LookAhead(fail())
    assert next(batches) == (0, 0)
    assert batches.peek() is None
    with pytest.raises(OSError, match="the file is gone"):
        next(batches)
    assert list(batches) == []
