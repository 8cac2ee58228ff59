# SPDX-License-Identifier: Apache-2.0
"""What trainings tell a person: printed, or heard by what runs many of them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context

_A_FEW_SECONDS = 3.0


class Listener:
    """Takes what trainings say; this one lets it pass."""

    #: Whether it only wants the lines of estimators that have `verbose`.
    wants_verbose = False

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
    >>> from skest.core.voice import Named, heard_by, voice
    >>> with heard_by(Named("Model 1: ")):
    ...     voice(verbose=1)("Epoch 1/9")
    Model 1: Epoch 1/9
    """

    wants_verbose = True

    def __init__(self, name: str) -> None:
        self._name = name

    def line(self, text: str) -> None:
        """Print it."""
        print(f"{self._name}{text}")


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
