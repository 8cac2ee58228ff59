# SPDX-License-Identifier: Apache-2.0
"""The command ``skest``: ``skest serve PATH``."""

import argparse
import importlib
from collections.abc import Sequence

from skest._version import __version__

# Modules with a function main(arguments, prog); imported when their command is given.
_COMMANDS = {"serve": "skest.export.serve"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of skest.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its arguments, by default those of the process.

    Returns
    -------
    int
        The exit status.

    Examples
    --------
    >>> from skest.command_line import main
    >>> main(["serve"])
    Traceback (most recent call last):
        ...
    SystemExit: 2
    """
    parser = argparse.ArgumentParser(
        prog="skest",
        description="Serve exported models by HTTP. `skest serve --help` says more.",
    )
    parser.add_argument("--version", action="version", version=f"skest {__version__}")
    parser.add_argument("command", choices=sorted(_COMMANDS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command")
    given = parser.parse_args(arguments)
    command = importlib.import_module(_COMMANDS[given.command])
    status: int = command.main(given.arguments, prog=f"skest {given.command}")
    return status
