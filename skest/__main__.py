# SPDX-License-Identifier: Apache-2.0
"""``python -m skest``: the command ``skest``."""

from skest.command_line.program import main

if __name__ == "__main__":
    raise SystemExit(main())
