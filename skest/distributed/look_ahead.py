# SPDX-License-Identifier: Apache-2.0
"""`LookAhead`: batches, of which the next one can be seen before it is taken."""

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["LookAhead"]

Batch = tuple[Any, Any]


class LookAhead(Iterator[Batch]):
    """An iterator over the same batches.

    Parameters
    ----------
    batches : iterator of (features, labels)
        Read one batch further than it is taken here, once that was looked at.

    Examples
    --------
    >>> from skest.distributed.look_ahead import LookAhead
    >>> batches = LookAhead(iter([("first", 0), ("second", 1)]))
    >>> batches.peek(), next(batches), next(batches), batches.peek()
    (('first', 0), ('first', 0), ('second', 1), None)
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._kept: Callable[[], Batch] | None = None

    def __next__(self) -> Batch:
        kept, self._kept = self._kept, None
        return next(self._batches) if kept is None else kept()

    def peek(self) -> Batch | None:
        """Return the next batch; None if there is none, or an error in its place.

        The error is raised when that batch is taken: what comes before it is trained on.
        """
        if self._kept is None:
            try:
                batch = next(self._batches)
            except Exception as error:
                self._kept = _raising(error)
            else:
                self._kept = lambda: batch
        try:
            return self._kept()
        except Exception:
            return None


def _raising(error: Exception) -> Callable[[], Batch]:
    def fail() -> Batch:
        raise error

    return fail
