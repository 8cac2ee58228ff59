# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors that are like any other file of the program.

The library gives them permissions of its own, and reports errors of the system under
other names.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from skest._files import flush

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a new file with the permissions of the umask, and flush it.

    Raises
    ------
    OSError
        If it can't be written.
    """
    path.touch()
    mode = path.stat().st_mode & 0o777
    with _errors_of_the_system():
        save_file(dict(tensors), path)
    path.chmod(mode)
    flush(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors, which are mapped from the file.

    Raises
    ------
    OSError
        If it can't be read.
    SafetensorError
        If it is no such file.
    """
    path.open("rb").close()  # whatever is wrong, safetensors says that there is no file
    with _errors_of_the_system():
        return load_file(path)


@contextmanager
def _errors_of_the_system() -> Iterator[None]:
    """Raise as OSError what safetensors tells of in words."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
