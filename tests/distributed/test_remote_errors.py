# SPDX-License-Identifier: Apache-2.0
"""Errors of other processes."""

import pytest

from skest.distributed.supervisor import dump_error, load_error


class TwoArgumentsError(Exception):
    """Can't be built from its ``args``."""

    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


def caught(error):
    try:
        raise error
    except Exception as error:
        return error


def test_type_arguments_and_traceback_survive():
    error = load_error(dump_error(caught(KeyError("x"))), "worker-1")
    assert isinstance(error, KeyError)
    assert error.args == ("x",)
    assert "In worker-1:\nTraceback" in str(error.__cause__)
    assert "in caught" in str(error.__cause__)


def test_an_error_that_cannot_be_rebuilt_keeps_its_text():
    error = load_error(dump_error(caught(TwoArgumentsError("text", 2))), "worker-1")
    # Where Dask was imported, tblib has taught pickle to rebuild even this one.
    with pytest.raises((RuntimeError, TwoArgumentsError), match="text"):
        raise error


def test_an_error_of_a_local_class_travels():
    class LocalError(ValueError):
        pass

    error = load_error(dump_error(caught(LocalError("text"))), "worker-1")
    assert isinstance(error, ValueError)
