# SPDX-License-Identifier: Apache-2.0
"""The command ``skest``: train on a table, look, predict, export and serve."""

from skest.command_line.program import main

__all__ = ["main"]
