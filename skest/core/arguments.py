# SPDX-License-Identifier: Apache-2.0
"""`ArgumentParser`, that of Python, and errors: what is wrong, said in one line."""

import argparse
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Ends the process with one line, without the usage of all options."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the options are listed."""
        hint = "" if message.endswith(".") else f". See `{self.prog} --help`."
        self.exit(2, f"{self.prog}: error: {message}{hint}\n")


def text_of(error: BaseException) -> str:
    """Return what an error says, without its number in the operating system."""
    if isinstance(error, OSError) and error.strerror:
        file = "" if error.filename is None else f"{error.filename}: "
        return f"{file}{error.strerror}"
    return str(error) or type(error).__name__
