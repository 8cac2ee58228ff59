# SPDX-License-Identifier: Apache-2.0
"""A process that dies at a chosen operation on files."""

import functools
import os
import shutil
import signal
from pathlib import Path

from skest import _tensor_files

OPERATIONS = [
    (os, "fsync"),
    (shutil, "rmtree"),
    (_tensor_files, "save_file"),
    (Path, "chmod"),
    (Path, "mkdir"),
    (Path, "open"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "touch"),
    (Path, "unlink"),
]


def save_until(n_operations, save, *arguments):
    """Call `save`, but kill this process instead of operation `n_operations`."""
    done = iter(range(n_operations))

    def killing(operation):
        @functools.wraps(operation)
        def function(*args, **kwargs):
            if next(done, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **kwargs)

        return function

    for owner, name in OPERATIONS:
        setattr(owner, name, killing(getattr(owner, name)))
    save(*arguments)
