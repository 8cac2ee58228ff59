# SPDX-License-Identifier: Apache-2.0
"""What a person and a training tell each other: Ctrl-C, lines that are printed, tables.

Ctrl-C ends a training between two steps; elsewhere it raises KeyboardInterrupt.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from html import escape
from types import FrameType
from typing import NamedTuple, NoReturn

INTERRUPTED = "interrupted by Ctrl-C"
_A_FEW_SECONDS = 3.0

_logger = logging.getLogger("skest")


def stopping_on_interrupt(
    request_stop: Callable[[str], None],
) -> AbstractContextManager[None]:
    """Make the first Ctrl-C ask to stop; the second raises KeyboardInterrupt as ever.

    A step that is cut short leaves variables of which some are updated and some are not,
    so it is brought to its end.

    Parameters
    ----------
    request_stop : callable
        Called with `INTERRUPTED`. It may raise KeyboardInterrupt.
    """
    owner = os.getpid()

    def ask(signum: int, frame: FrameType | None) -> None:
        # Ctrl-C also goes to processes that were forked to load data. They stay, so that
        # the step can be finished, and end with this one.
        if os.getpid() != owner:
            return
        # Before the request, which may raise: the next one is Python's.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        request_stop(INTERRUPTED)
        _logger.warning(
            "Ctrl-C: training stops after this step and saves a checkpoint; press it "
            "again to stop at once."
        )

    return _answering(ask)


def raising_on_interrupt() -> AbstractContextManager[None]:
    """Make Ctrl-C raise KeyboardInterrupt in a training, too, of which nothing is kept.

    That of many models that are compared is of no use half done.
    """
    return _answering(_raise)


@contextmanager
def _answering(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Answer Ctrl-C by a handler, unless the program has set one of its own."""
    # Only the main thread gets Ctrl-C, and only it may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


# scikit-learn turns an Exception of a fit into a score, `error_score`.
class OutOfTime(BaseException):
    """The time for a training is over: no error that scikit-learn should score."""


class Listener:
    """Takes what trainings say, and may end them; this one lets it pass.

    Parameters
    ----------
    end : float, default=inf
        When the time of the trainings is over, on the clock of `time.time`, which all
        processes have in common.
    """

    #: Whether it only wants the lines of estimators that have `verbose`.
    wants_verbose = False

    def __init__(self, end: float = math.inf) -> None:
        self.end = end

    def check(self) -> None:
        """Raise `OutOfTime` if it is over; called after every epoch."""
        if time.time() > self.end:
            raise OutOfTime

    def line(self, text: str) -> None:
        """Take a line, such as that about an epoch."""

    def fitted(self, n_estimators: int) -> None:
        """Note that so many more estimators are fitted."""


class Printed(Listener):
    """Prints all lines."""

    def line(self, text: str) -> None:
        """Print it."""
        print(text)


class Named(Listener):
    """Prints lines with a name before them, of estimators that have `verbose`.

    Examples
    --------
    >>> from skest.core.console import Named, heard_by, voice
    >>> with heard_by(Named("Model 1: ")):
    ...     voice(verbose=1)("Epoch 1/9")
    Model 1: Epoch 1/9
    """

    wants_verbose = True

    def __init__(self, name: str, end: float = math.inf) -> None:
        super().__init__(end)
        self._name = name

    def line(self, text: str) -> None:
        """Print it, at once: other processes may print, too."""
        # In one write: `print` writes the end of the line by itself.
        print(f"{self._name}{text}\n", end="")


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def listener() -> Listener | None:
    """Return who listens to the trainings of this context, None if nobody does."""
    return _LISTENER.get()


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Give what trainings say to a listener instead of printing it."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def voice(verbose: bool | int) -> Callable[[str], None] | None:
    """Return what takes the lines of a training, None if nobody wants them."""
    heard = listener()
    if heard is None:
        return print if verbose else None
    # Not the listener itself: hooks are pickled, and ask for it where they run.
    return _tell if verbose or not heard.wants_verbose else None


@contextmanager
def speaking(verbose: bool | int) -> Iterator[None]:
    """Let code that knows no `verbose` say what it says with this one."""
    with heard_by(listener() or (Printed() if verbose else None)):
        yield


@contextmanager
def said_if_long(text: str, verbose: bool | int = False) -> Iterator[None]:
    """Say what is being done once it has taken a few seconds."""
    say = voice(verbose)
    if say is None:
        yield
        return
    # A thread has a context of its own, without the listener.
    timer = threading.Timer(_A_FEW_SECONDS, copy_context().run, (say, text))
    # The program may end while it waits.
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(text: str) -> None:
    heard = listener()
    if heard is not None:  # none in another process, where hooks may run
        heard.line(text)


class TitledTable(NamedTuple):
    """A table with a title."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def text(self) -> str:
        """Return it as text."""
        return f"{self.title}\n{text_table([self.head, *self.rows])}"


def text_table(rows: Sequence[Sequence[str]], widest: int = 90) -> str:
    """Return rows of cells in columns that are aligned; long cells are cut."""
    cut = [[c if len(c) <= widest else f"{c[: widest - 1]}…" for c in r] for r in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return "\n".join(
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cut
    )


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that a click on its caption opens, as those of scikit-learn."""

    def line(cells: Sequence[str], tag: str) -> str:
        *short, last = map(escape, cells)
        first = "".join(f"<{tag} nowrap>{cell}</{tag}>" for cell in short)
        return f"<tr align=left>{first}<{tag}>{last}</{tag}></tr>"

    body = "".join(line(row, "td") for row in rows)
    return (
        '<details class="skest" style="font-family: monospace">'
        f"<summary>{escape(caption)}</summary><table cellpadding=3>"
        f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table></details>"
    )
