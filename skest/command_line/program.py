# SPDX-License-Identifier: Apache-2.0
"""The program: finds the command, and says in one line what went wrong."""

import argparse
import contextlib
import io
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from skest._version import __version__
from skest.core.checks import ArgumentParser, text_of

# Functions of (arguments, prog), whose modules are imported when their command is given.
_COMMANDS = {
    "train": ("train:main", "train a model on a CSV or Parquet file"),
    "evaluate": ("kept_model:evaluate", "measure a model on rows with target"),
    "predict": ("kept_model:predict", "write predictions for rows of a file"),
    "inspect": ("inspect:main", "tell what a model, checkpoint or export is"),
    "export": ("kept_model:export", "write a model that runs without Python"),
    "serve": ("serve:main", "answer requests for exported models by HTTP"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of skest.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its arguments, by default those of the process.

    Returns
    -------
    int
        The exit status: 0 if all went well, 2 if the command was given something wrong,
        130 if it was interrupted. Errors that are none of the user's are raised.

    Examples
    --------
    >>> from skest.command_line import main
    >>> main(["inspect", "no-such-model"])
    2
    """
    listing = "\n".join(f"  {name:10}{text}" for name, (_, text) in _COMMANDS.items())
    parser = ArgumentParser(
        prog="skest",
        description="Networks for tables, from a file to a server.",
        epilog=f"commands:\n{listing}\n\n`skest COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"skest {__version__}")
    parser.add_argument(
        # Optional to argparse, whose own message would list no commands.
        "command",
        nargs="?",
        choices=_COMMANDS,
        metavar="COMMAND",
        help="one of those below",
    )
    parser.add_argument(
        # Its options are its own: they are parsed when its module is there.
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="of the command",
    )
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.error(f"give a command: {', '.join(_COMMANDS)}")
    prog = f"skest {given.command}"
    # Imported only now: PyTorch takes a second, and `skest --help` needs none of it.
    try:
        place, _ = _COMMANDS[given.command]
        command = pkgutil.resolve_name(f"skest.command_line.{place}")
    except ModuleNotFoundError as error:  # where exports run, not all is installed
        package = str(error.name).split(".")[0]
        if package == "skest":
            raise
        package = "scikit-learn" if package == "sklearn" else package
        _say(f"{prog}: error", f"{error}. Install it by `pip install {package}`.")
        return 2
    return _run(command, given.arguments, prog)


def _run(command: Callable[..., None], arguments: Sequence[str], prog: str) -> int:
    with (
        # Both: `skest train ... 2>&1 | head` closes one and the same pipe.
        contextlib.redirect_stdout(_PipedStream(sys.stdout)) as answer,
        contextlib.redirect_stderr(_PipedStream(sys.stderr)),
        warnings.catch_warnings(),
    ):
        # By text: filters of `warnings` go by the place in the code.
        told = set()

        def tell(message: Warning | str, *_: Any, **__: Any) -> None:
            if str(message) not in told:
                told.add(str(message))
                _say("warning", str(message))

        # One line for each, without the place in the code, which says nothing to a user.
        warnings.showwarning = tell
        try:
            command(arguments, prog=prog)
            # Here, where a closed pipe is no error; at exit it would be one.
            answer.flush()
            return 0
        except KeyboardInterrupt:
            _say(prog, "interrupted")
            # As a shell says of a process that SIGINT has ended: 128 + 2.
            return 130
        # What else there is, is an error of skest: a traceback tells where.
        except (ImportError, MemoryError, OSError, TypeError, ValueError) as error:
            _say(f"{prog}: error", text_of(error))
            return 2


class _PipedStream:
    """A standard stream whose reader may have seen enough, as `| head`.

    What else is said goes nowhere then: a model is trained and saved all the same.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = io.StringIO() if stream is None else stream  # closed: `>&-`

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            self._end()
        # As if all had been written.
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._end()

    def _end(self) -> None:
        # As Python's notes on SIGPIPE have it: what is flushed at exit goes nowhere,
        # and raises nothing.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def _say(who: str, text: str) -> None:
    # In one line: messages of other libraries have several.
    print(f"{who}: {' '.join(text.split())}", file=sys.stderr)
