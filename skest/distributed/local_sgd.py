# SPDX-License-Identifier: Apache-2.0
"""`LocalSGDReplica`: processes that train apart and average now and then."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from skest.core.checks import check_integer
from skest.distributed.process_group import SynchronousReplica
from skest.engine.loop import Step, WatchedStep, train_step, trained_parameters
from skest.hooks.base import Run
from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import RowSparse


class LocalSGDReplica(SynchronousReplica):
    """One of several processes whose variables become their mean every few steps.

    Between that each takes steps of its own, as if alone, with batches of its own: the
    network carries one `sync_every`-th of what it does with `DataParallelReplica`. All
    variables that are trained are averaged, tables as a whole; slots of optimizers stay
    with their process, and so do buffers, such as the statistics of BatchNorm. The
    checkpoint has those of the chief.

    Parameters
    ----------
    sync_every : int, default=8
        Steps between two averages. They are taken behind the global steps that are a
        multiple of it, and at the end. A checkpoint of a step between has the variables
        of the chief alone, so let `save_checkpoints_steps` be a multiple of it.
    device, timeout
        As for `SynchronousReplica`.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong type.

    Notes
    -----
    The global step counts the steps of one process. Every process counts as much as the
    others, whatever the sizes of their batches. `Ftrl` computes weights from its slots,
    so these are changed to stand for the mean.

    References
    ----------
    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.

    Examples
    --------
    >>> from skest.distributed.local_sgd import LocalSGDReplica
    >>> LocalSGDReplica(sync_every=4).sync_every
    4
    """

    strategy = "LocalSGD"

    def __init__(
        self, sync_every: int = 8, device: Any = "auto", timeout: float = 1800.0
    ) -> None:
        super().__init__(device, timeout)
        check_integer(sync_every, "sync_every", "LocalSGDReplica", minimum=1)
        self.sync_every = sync_every

    def make_step(self, run: Run, make: Callable[..., Step]) -> Step:
        """Return what takes a step as in one process, and averages if it is time."""
        return self._synchronized(run, make())

    def make_watched_step(self, run: Run) -> WatchedStep:
        """Return the same for steps of which hooks want the gradients."""
        return self._synchronized(run, functools.partial(train_step, run.spec))

    def _synchronized(self, run: Run, step: Callable[..., Tensor]) -> Any:
        def take(*args: Any) -> Tensor:
            loss = step(*args)
            is_time = (run.global_step + 1) % self.sync_every == 0
            if is_time and self.agree(run) is not None:
                self._average(run)
            return loss

        return take

    def finish(self, run: Run) -> None:
        """Wait until all have stopped, and average for the last time."""
        super().finish(run)
        self._average(run)

    @torch.no_grad()
    def _average(self, run: Run) -> None:
        if self.peers.size == 1:
            return
        variables = list(trained_parameters(run.spec))
        # They become views of one buffer, while the variables stay where they are.
        means = [nn.Parameter(v.detach(), requires_grad=False) for v in variables]
        with self.peers.explained():
            average_parameters(iter(means), dist.distributed_c10d._get_default_group())
        for variable, mean in zip(variables, means, strict=True):
            variable.copy_(mean)
        for optimizer in run.spec.optimizers:
            rule = optimizer.inner if isinstance(optimizer, RowSparse) else optimizer
            if isinstance(rule, Ftrl):
                rule.keep_weights(variables)
