# SPDX-License-Identifier: Apache-2.0
"""Names and texts that no file of an export can hold."""

import contextlib
from collections.abc import Iterator

from skest.exceptions import ExportError

__all__ = ["explained_unicode"]

_AROUND = 20  # characters to show of a long text


@contextlib.contextmanager
def explained_unicode() -> Iterator[None]:
    r"""Raise `ExportError` where a string cannot be written as UTF-8.

    Examples
    --------
    >>> from skest.export.unicode_names import explained_unicode
    >>> with explained_unicode():
    ...     _ = "a\ud800".encode()
    Traceback (most recent call last):
    ...
    skest.exceptions.ExportError: The model has a name or text 'a\ud800', ...
    """
    try:
        yield
    except UnicodeEncodeError as error:
        around = slice(max(0, error.start - _AROUND), error.end + _AROUND)
        raise ExportError(
            f"The model has a name or text {error.object[around]!r}, which is not valid "
            "Unicode (it has a lone surrogate). Give the column or class another one, "
            "e.g. name.encode('utf-8', 'replace').decode(), and fit again."
        ) from error
