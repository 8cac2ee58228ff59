# SPDX-License-Identifier: Apache-2.0
"""How much memory this process has in use."""

import os
from pathlib import Path

__all__ = ["resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Return the bytes of this process that are in memory; None where nobody says.

    Examples
    --------
    >>> from skest.distributed.resident_memory import resident_bytes
    >>> (resident_bytes() or 10**7) > 10**6
    True
    """
    try:
        n_pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return n_pages * os.sysconf("SC_PAGE_SIZE")
