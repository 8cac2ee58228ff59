# SPDX-License-Identifier: Apache-2.0
"""Tables whose values are in parameter servers: how little of them a worker needs."""

import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from skest.distributed.ps.variables import is_row_table
from skest.feature_columns.lookup import own_values


class LazyZeros:
    """A tensor of zeros whose pages, on the CPU, come into being when they are written to.

    Of a table in parameter servers a worker needs the rows that it reads, at the places
    that they have in the table: so the table may be larger than the memory.

    Parameters
    ----------
    shape, dtype, device
        Of the tensor.

    Attributes
    ----------
    tensor : Tensor
        The tensor.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.ps.elsewhere import LazyZeros
    >>> large = LazyZeros((10**9, 16), torch.float32)
    >>> large.tensor[123_456_789] = 1
    >>> float(large.tensor[123_456_789].sum())
    16.0
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        n_bytes = math.prod(shape) * dtype.itemsize
        if torch.device(device).type != "cpu" or not n_bytes:
            self.tensor = torch.zeros(shape, dtype=dtype, device=device)
            self._memory = None
            return
        options = {}
        if hasattr(mmap, "MAP_PRIVATE"):
            options["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOT_RESERVED
        self._memory = mmap.mmap(-1, n_bytes, **options)
        flat = torch.frombuffer(self._memory, dtype=dtype)
        self.tensor = flat.view(tuple(shape))

    def forget(self) -> None:
        """Give the memory back, if that can be; the tensor is all zeros again."""
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self.tensor.zero_()


# Of Linux; Python has the name from 3.13 on. Without it, a table larger than the memory
# is refused by the kernel.
_NOT_RESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class TablesElsewhere(TorchFunctionMode):
    """Lets a model be built whose tables of feature columns get their values elsewhere.

    They are zeros that need no memory, and of their slots, which some optimizers make at
    once, there is but the description. What other code makes is what it always is.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.ps.elsewhere import TablesElsewhere
    >>> from skest.feature_columns.lookup import row_table
    >>> table = row_table(torch.empty(10**6, 16))
    >>> with TablesElsewhere():
    ...     adagrad = torch.optim.Adagrad([table], initial_accumulator_value=0.1)
    >>> adagrad.state[table]["sum"].device
    device(type='meta')
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is own_values:
            return LazyZeros(args[0].shape, args[0].dtype, args[0].device).tensor
        if func in (torch.full_like, torch.zeros_like) and is_row_table(args[0]):
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)
