# SPDX-License-Identifier: Apache-2.0
"""Warnings that show the line of the user's code which led to them."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["each_once", "warn"]

# What is called by a user's code, or calls skest on its behalf.
_BETWEEN = {"skest", "sklearn", "joblib"}
_told: ContextVar[set[str] | None] = ContextVar("_told", default=None)


@contextlib.contextmanager
def each_once() -> Iterator[None]:
    """Let `warn` say each thing once within the block, whatever the filters are."""
    token = _told.set(set())
    try:
        yield
    finally:
        _told.reset(token)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, from any depth, at the line that called skest, or a search that did.

    Parameters
    ----------
    message : str
        What is wrong, and how to mend it.
    category : type of warning, default=UserWarning
        For the filters of `warnings`.

    Examples
    --------
    >>> import warnings
    >>> from skest._warnings import warn
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("The rows are few.")
    >>> str(caught[0].message)
    'The rows are few.'
    """
    told = _told.get()
    if told is not None:
        if message in told:
            return
        told.add(message)
    # With Python 3.12 at least this is 'skip_file_prefixes'.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_between(frame.f_globals):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_between(names: dict[str, object]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in _BETWEEN
