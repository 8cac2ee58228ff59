# SPDX-License-Identifier: Apache-2.0
"""`DataParallelReplica`: processes that take every step together."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from skest.distributed.process_group import SynchronousReplica, rows_of
from skest.distributed.row_gradients import average_gradients
from skest.engine.loop import (
    INPUT_ENDED,
    Step,
    WatchedStep,
    reset_gradients,
    scalar_loss,
    train_step,
    trained_parameters,
)
from skest.hooks.base import Run
from skest.spec import EstimatorSpec


class DataParallelReplica(SynchronousReplica):
    """One of several processes that take every step together, each with a batch.

    Gradients become their mean over all processes, and every process takes the same
    step: with a loss that is a mean over the batch, `n` processes with batches of `b`
    rows train as one with `n b` does, up to rounding. Processes with more rows count for
    more. A loss that is a sum becomes the mean of the sums.

    Dense gradients are exchanged by ``DistributedDataParallel``, while the backward pass
    is still at work. Of row tables (those of skest, and ``nn.Embedding(sparse=True)``)
    only the rows go over the network that a batch has touched.

    Parameters
    ----------
    device, timeout
        As for `SynchronousReplica`.
    static_graph : bool, default=True
        Whether the same variables take part in every step. False is slower, and needed
        by models where that depends on the values of a batch.

    Notes
    -----
    BatchNorm uses the statistics of the batch of its process, and the checkpoint has the
    running statistics of the chief. For those of all, convert the network in `model_fn`
    with ``torch.nn.SyncBatchNorm.convert_sync_batchnorm`` (on GPUs). Dropout and the
    like draw other numbers in every process; they follow from
    ``RunConfig.random_seed``. Where a training goes on from a checkpoint, those of the
    chief go on, and those of the others are new. Steps are taken eagerly.

    Examples
    --------
    >>> from skest.distributed.data_parallel import DataParallelReplica
    >>> DataParallelReplica(timeout=60.0).is_chief  # until it has joined the others
    True
    """

    strategy = "DataParallel"

    def __init__(
        self,
        device: Any = "auto",
        timeout: float = 1800.0,
        *,
        static_graph: bool = True,
    ) -> None:
        super().__init__(device, timeout)
        self._static_graph = static_graph
        self._module: nn.Module | None = None
        self._tables: list[Tensor] = []
        self._share = 1.0

    def close(self) -> None:
        """Let go of the network and of the device."""
        self._module, self._tables = None, []
        super().close()

    def begin(self, run: Run) -> None:
        """Begin with the variables of the chief."""
        super().begin(run)
        trained = trained_parameters(run.spec)
        self._tables = [t for t in _row_tables(run.network) if t in trained]
        module = _LossOf(run.spec)
        own = {*trained} - {*self._tables}
        ignored = [
            name
            for name, variable in [
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            ]
            if variable not in own
        ]
        if not own or self.peers.size == 1:
            self._module = module
            return
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            module, ignored
        )
        self._module = _outlived_by_its_group(
            DistributedDataParallel(
                module,
                init_sync=False,  # `begin` has shared more
                static_graph=self._static_graph,
                find_unused_parameters=not self._static_graph,
            )
        )

    def batches(
        self, run: Run, batches: Iterator[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of this process until one of all has no more."""
        for batch in batches:
            n_rows = rows_of((batch[1], batch[0])) or 1
            n_all = self.agree(run, n=n_rows)
            if n_all is None:
                return
            self._share = n_rows * self.peers.size / n_all
            yield batch
        self.agree(run, INPUT_ENDED)

    def make_step(self, run: Run, make: Callable[..., Step]) -> Step:
        """Return what takes a step together with the others."""
        return self._step(run)

    def make_watched_step(self, run: Run) -> WatchedStep:
        """Return the same for steps of which hooks want the gradients."""
        return self._step(run)

    def _step(self, run: Run) -> Callable[..., Tensor]:
        return functools.partial(train_step, run.spec, compute=self._compute_gradients)

    def _compute_gradients(
        self, spec: EstimatorSpec, features: Any, labels: Any
    ) -> Tensor:
        if self._module is None:
            raise RuntimeError("DataParallelReplica takes no steps before its begin.")
        for optimizer in spec.optimizers:
            reset_gradients(optimizer)
        with self.peers.explained():
            loss = self._module(features, labels) * self._share
            loss.backward()
        return average_gradients(self.peers, self._tables, loss.detach())


def _outlived_by_its_group(
    module: DistributedDataParallel,
) -> DistributedDataParallel:
    """Let a module hold its process group longer than the reducer, which holds it, too.

    Attributes end in the order in which they were set. Whoever lets go of a group as the
    last one waits for its threads. The reducer does so with Python's lock, which a thread
    needs that clears away an operation that has failed: both would wait for ever
    (seen with PyTorch 2.13 after the loss of a peer).
    """
    module.process_group = vars(module).pop("process_group")
    return module


class _LossOf(nn.Module):
    """The loss of a model as a module, so that no part of it is outside of one call.

    A head may use variables of the network beside its output.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        super().__init__()
        self.network = spec.network
        self._spec = spec

    def forward(self, features: Any, labels: Any) -> Tensor:
        loss, network = self._spec.loss, self._spec.network
        if loss is None or network is None:
            raise ValueError("A training step needs an EstimatorSpec of mode 'train'.")
        return scalar_loss(loss(labels, network(features), features))


def _row_tables(network: nn.Module) -> list[Tensor]:
    """Return the parameters whose gradients are those of single rows."""
    found: list[Tensor] = [
        p for p in network.parameters() if getattr(p, "is_row_table", False)
    ]
    for module in network.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            found.append(module.weight)
    return list(dict.fromkeys(found))
