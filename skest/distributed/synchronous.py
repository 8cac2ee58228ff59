# SPDX-License-Identifier: Apache-2.0
"""Processes that train in step: by the mean of their gradients, or of their variables."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

from skest.core.checks import check_integer
from skest.distributed.process_group import Peers, SynchronousReplica, rows_of
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
from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import is_row_table, rule_of
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
    >>> from skest.distributed.synchronous import DataParallelReplica
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
            # `DistributedDataParallel` takes the plain mean over processes; this makes
            # it the mean over all rows.
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
    found: list[Tensor] = [*filter(is_row_table, network.parameters())]
    for module in network.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            found.append(module.weight)
    return list(dict.fromkeys(found))


_NONE, _ROWS, _DENSE = range(3)

_ALIGNMENT = 8  # bytes: tensors of every type may begin at a multiple of it


def average_gradients(peers: Peers, tables: Sequence[Tensor], loss: Tensor) -> Tensor:
    """Replace the gradients of tables by their means over all processes.

    A gradient of rows becomes that of the rows of all processes, one behind the other by
    rank, as if one process had looked them up; nothing is sorted or added here. Rows of
    all tables go over the network together.

    Parameters
    ----------
    peers : Peers
        The processes; each has the same tables.
    tables : sequence of Tensor
        Some of their gradients may be dense, or None, also in some processes only.
    loss : Tensor of shape ()
        Loss of this process.

    Returns
    -------
    Tensor of shape ()
        The mean of the losses.
    """
    if peers.size == 1:
        return loss
    own = [(_kind(table), _n_rows(table)) for table in tables]
    # The bits of the loss travel among integers: one exchange in place of two.
    head = torch.tensor([loss.item()], dtype=torch.float64).view(torch.int64)
    heads = peers.gathered(torch.cat([head, torch.tensor(own).view(-1).long()]))
    mean = heads[:, 0].contiguous().view(torch.float64).sum() / peers.size
    described = heads[:, 1:].view(peers.size, len(tables), 2)
    kinds = described[..., 0].amax(dim=0).tolist()
    in_rows = []
    for index, (table, kind) in enumerate(zip(tables, kinds, strict=True)):
        if kind == _DENSE:
            table.grad = peers.total(_dense_gradient(table)) / peers.size
        elif kind == _ROWS:
            in_rows.append(index)
    if in_rows:
        n_rows = described[:, in_rows, 1].tolist()
        _average_rows(peers, [tables[index] for index in in_rows], n_rows)
    return mean.to(loss)


def _kind(table: Tensor) -> int:
    if table.grad is None:
        return _NONE
    return _ROWS if table.grad.is_sparse else _DENSE


def _n_rows(table: Tensor) -> int:
    return table.grad._nnz() if _kind(table) == _ROWS and table.grad is not None else 0


def _dense_gradient(table: Tensor) -> Tensor:
    if table.grad is None:
        return torch.zeros_like(table)
    return table.grad.to_dense() if table.grad.is_sparse else table.grad


def _average_rows(
    peers: Peers, tables: Sequence[Tensor], n_rows: Sequence[Sequence[int]]
) -> None:
    """Exchange the rows of tables; `n_rows` counts those of every rank and table."""
    shapes = [
        [
            shape
            for table, n in zip(tables, of, strict=True)
            for shape in _like(table, n)
        ]
        for of in n_rows
    ]
    sizes = [sum(_padded(n_bytes) for *_, n_bytes in of) for of in shapes]
    payload = tables[0].new_zeros(max(sizes), dtype=torch.uint8)
    places = _taken_apart(payload, shapes[peers.rank])
    pieces = [piece for table in tables for piece in _ids_and_values(table)]
    for place, piece in zip(places, pieces, strict=True):
        place.copy_(piece)
    rows = peers.gathered(payload)
    found = [_taken_apart(row, of) for row, of in zip(rows, shapes, strict=True)]
    for index, table in enumerate(tables):
        ids = torch.cat([parts[2 * index] for parts in found])
        values = torch.cat([parts[2 * index + 1] for parts in found]) / peers.size
        table.grad = torch.sparse_coo_tensor(
            ids[None], values, table.shape, is_coalesced=False, check_invariants=False
        )


def _ids_and_values(table: Tensor) -> tuple[Tensor, Tensor]:
    grad = table.grad
    if grad is None:
        ids = torch.empty(0, dtype=torch.int64, device=table.device)
        return ids, table.detach()[:0]
    return grad._indices()[0], grad._values()


_Like = tuple[torch.dtype, tuple[int, ...], int]


def _like(table: Tensor, n_rows: int) -> tuple[_Like, _Like]:
    """Return type, shape and bytes of the ids and of the values of so many rows."""
    shape = (n_rows, *table.shape[1:])
    n_bytes = math.prod(shape) * table.element_size()
    return (torch.int64, (n_rows,), 8 * n_rows), (table.dtype, shape, n_bytes)


def _padded(n_bytes: int) -> int:
    return math.ceil(n_bytes / _ALIGNMENT) * _ALIGNMENT


def _taken_apart(row: Tensor, shapes: Sequence[_Like]) -> list[Tensor]:
    """Return the tensors that lie one behind the other in a row of bytes."""
    found, start = [], 0
    for dtype, shape, n_bytes in shapes:
        found.append(row[start : start + n_bytes].view(dtype).view(shape))
        start += _padded(n_bytes)
    return found


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
    >>> from skest.distributed.synchronous import LocalSGDReplica
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
            rule = rule_of(optimizer)
            if isinstance(rule, Ftrl):
                rule.keep_weights(variables)
