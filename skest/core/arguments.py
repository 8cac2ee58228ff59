# SPDX-License-Identifier: Apache-2.0
"""`ArgumentParser`: that of Python, which says in one line what is wrong."""

import argparse
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Ends the process with one line, without the usage of all options."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the options are listed."""
        hint = "" if message.endswith(".") else f". See `{self.prog} --help`."
        self.exit(2, f"{self.prog}: error: {message}{hint}\n")
