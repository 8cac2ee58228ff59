# SPDX-License-Identifier: Apache-2.0
"""`Transfer`: batches on their way to a GPU while it computes."""

from collections import deque

import torch
from torch import Tensor

_STEPS_AHEAD = 2


class Transfer:
    """Brings batches to a GPU: from pinned memory, on a stream of its own.

    So a batch is on its way while the steps before it are computed. No more than two of
    them may be ahead, or batches that wait would fill the memory of the GPU.

    Parameters
    ----------
    device : torch.device
        The GPU.

    Notes
    -----
    It follows the tutorial "A guide on good usage of non_blocking and pin_memory()" of
    PyTorch: pinned memory is not given back before its copy is complete, and memory of
    the GPU that another stream reserved is recorded for the one that uses it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._steps: deque[torch.cuda.Event] = deque()

    def __call__(self, leaf: Tensor) -> Tensor:
        """Return a tensor on the GPU; what is launched from now on waits for it."""
        if leaf.is_cuda or leaf.layout != torch.strided:
            return leaf.to(self._device)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = pinned(leaf).to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        there.record_stream(current)
        return there

    def wait_for_steps(self) -> None:
        """Begin a batch, when few enough of the steps before are still to be computed."""
        self._steps.append(torch.cuda.current_stream(self._device).record_event())
        if len(self._steps) > _STEPS_AHEAD:
            self._steps.popleft().synchronize()


def pinned(leaf: Tensor) -> Tensor:
    """Return a copy in pinned memory, which nobody else writes into.

    `Tensor.pin_memory` returns a tensor that is pinned as it is, takes as much memory for
    a column as for its table, and refuses one that repeats a number by a stride of 0.
    """
    return torch.empty_like(leaf, pin_memory=True).copy_(leaf)
