# SPDX-License-Identifier: Apache-2.0
"""Errors on their way from one process to another."""

import pickle
import traceback

import cloudpickle

__all__ = ["RemoteTraceback", "dump_error", "load_error"]


class RemoteTraceback(Exception):  # noqa: N818 (it shows where an error was raised)
    """Where in another process an error was raised; the ``__cause__`` of that error.

    Parameters
    ----------
    text : str
        The traceback there.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def dump_error(error: BaseException) -> bytes:
    """Return an error as bytes for `load_error`.

    Parameters
    ----------
    error : BaseException
        As it was caught. One that can't be pickled becomes a RuntimeError with its type
        and text.
    """
    text = "".join(traceback.format_exception(error))
    try:
        dumped = cloudpickle.dumps((error.with_traceback(None), text))
        pickle.loads(dumped)  # some can't be built from their arguments
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        dumped = cloudpickle.dumps((substitute, text))
    return dumped


def load_error(dumped: bytes, task: str) -> BaseException:
    """Return the error that `dump_error` was given, to be raised here.

    Parameters
    ----------
    dumped : bytes
        From a process that is trusted.
    task : str
        What raised it, for people.

    Examples
    --------
    >>> from skest.distributed.remote_errors import dump_error, load_error
    >>> error = load_error(dump_error(KeyError("x")), "worker 1")
    >>> error, type(error.__cause__).__name__
    (KeyError('x'), 'RemoteTraceback')
    """
    error, text = pickle.loads(dumped)
    error.__cause__ = RemoteTraceback(f"In {task}:\n{text}")
    return error
