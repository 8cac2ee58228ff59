# SPDX-License-Identifier: Apache-2.0
"""Says what took the memory when there is none left on a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import nn

__all__ = ["bytes_in_words", "explained_out_of_memory"]

_TABLES_SHOWN = 3


@contextmanager
def explained_out_of_memory(
    n_rows: int, device: torch.device, network: nn.Module | None
) -> Iterator[None]:
    """Name the batch size and the largest variables if the block runs out of memory.

    Parameters
    ----------
    n_rows : int
        Rows of a batch.
    device : torch.device
        Where the block computes.
    network : Module or None
        Whose variables are there, or are to go there.

    Raises
    ------
    torch.OutOfMemoryError
        In place of the one that the block raised on a GPU.
    MemoryError
        In place of the RuntimeError that PyTorch raises where the memory of the machine
        is at its end, be the device a GPU or not.

    Examples
    --------
    >>> import torch
    >>> from skest.out_of_memory import explained_out_of_memory
    >>> network = torch.nn.Embedding(1000, 8)
    >>> with explained_out_of_memory(128, torch.device("cuda"), network):
    ...     raise torch.OutOfMemoryError("tried to allocate 1.00 GiB")
    Traceback (most recent call last):
    ...
    torch.OutOfMemoryError: The memory of cuda is at its end with batches of 128 rows ...
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(
            _message(error, n_rows, device, network)
        ) from error
    except RuntimeError as error:
        if "not enough memory" not in str(error) and (
            "can't allocate memory" not in str(error)
        ):
            raise
        raise MemoryError(
            _message(error, n_rows, torch.device("cpu"), network)
        ) from error


def _message(
    error: RuntimeError, n_rows: int, device: torch.device, network: nn.Module | None
) -> str:
    sizes = {
        name: (tuple(p.shape), p.numel() * p.element_size())
        for name, p in (network.named_parameters() if network is not None else ())
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1][1])[:_TABLES_SHOWN]
    shown = ", ".join(
        f"{name!r} of shape {shape}, {bytes_in_words(n)}"
        for name, (shape, n) in largest
    )
    total = sum(prod(shape) for shape, _ in sizes.values())
    listed = f" (largest: {shown})" if largest else ""
    return (
        f"The memory of {device} is at its end with batches of {n_rows} rows and "
        f"{total:,} weights{listed}; optimizers keep up to two numbers more for each. "
        "Take a smaller batch size, fewer buckets or a smaller dimension, or another "
        f"device. ({error})"
    )


def bytes_in_words(n_bytes: float) -> str:
    """Return a number of bytes in words.

    Examples
    --------
    >>> from skest.out_of_memory import bytes_in_words
    >>> bytes_in_words(3 * 2**20)
    '3.0 MiB'
    """
    for unit in ("bytes", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"
