# SPDX-License-Identifier: Apache-2.0
"""Whether something failed for lack of memory, which may pass."""

__all__ = ["lacks_memory"]

_TEXTS = ("Failed to allocate memory", "bad_alloc", "bad allocation")


def lacks_memory(error: BaseException) -> bool:
    """Tell whether memory was refused; an engine says so by its words only.

    Parameters
    ----------
    error : Exception
        What came of it, or of which it is the cause.

    Examples
    --------
    >>> from skest.export.memory import lacks_memory
    >>> lacks_memory(MemoryError()), lacks_memory(RuntimeError("std::bad_alloc"))
    (True, True)
    """
    if isinstance(error, MemoryError) or any(text in str(error) for text in _TEXTS):
        return True
    return error.__cause__ is not None and lacks_memory(error.__cause__)
