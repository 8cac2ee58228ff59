# SPDX-License-Identifier: Apache-2.0
"""Processes that train in step: by the mean of their gradients, or of their variables."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

from skest.distributed.process_group import Peers, SynchronousReplica, rows_of
from skest.engine import loop
from skest.hooks.base import Run
from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import row_tables, rule_of
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

    _module: Any = None
    _tables: Sequence[Tensor] = ()
    _share = 1.0

    def close(self) -> None:
        """Let go of the network and of the device."""
        self._module, self._tables = None, ()
        super().close()

    def begin(self, run: Run) -> None:
        """Begin with the variables of the chief."""
        super().begin(run)
        trained = loop.trained_parameters(run.spec)
        self._tables = [t for t in row_tables(run.network) if t in trained]
        module = _LossOf(run.spec)
        own = {*trained} - {*self._tables}
        # Tables go by row, what is frozen does not go at all; of tied variables it
        # wants all names.
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
        # There is no public way to leave variables out.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            module, ignored
        )
        # `begin` has shared more than its own first exchange would. Variables that the loss
        # does not reach are found in the first step, and not looked for in each.
        parallel = DistributedDataParallel(module, init_sync=False, static_graph=True)
        # The group must live longer than the reducer, which holds it, too: attributes end
        # in the order in which they were set. Whoever lets go of a group as the last one
        # waits for its threads. The reducer does so with Python's lock, which a thread
        # needs that clears away an operation that has failed: both would wait for ever
        # (seen with PyTorch 2.13 after the loss of a peer).
        parallel.process_group = vars(parallel).pop("process_group")
        self._module = parallel

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
        self.agree(run, loop.INPUT_ENDED)

    def make_step(self, run: Run, make: Callable[..., loop.Step]) -> loop.Step:
        """Return what takes a step together with the others."""
        return functools.partial(
            loop.train_step, run.spec, compute=self._compute_gradients
        )

    def _compute_gradients(
        self, spec: EstimatorSpec, features: Any, labels: Any
    ) -> Tensor:
        # Those of the step before: DistributedDataParallel would add to them.
        for optimizer in spec.optimizers:
            loop.reset_gradients(optimizer)
        with self.peers.explained():
            loss = self._module(features, labels) * self._share
            loss.backward()
        return average_gradients(self.peers, self._tables, loss.detach())


class _LossOf(nn.Module):
    """The loss of a model as a module, so that no part of it is outside of one call.

    A head may use variables of the network beside its output.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        super().__init__()
        self.network: Any = spec.network
        self._spec = spec

    def forward(self, features: Any, labels: Any) -> Tensor:
        loss: Any = self._spec.loss
        return loop.scalar_loss(loss(labels, self.network(features), features))


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
    # Counts are exact in float64: one exchange in place of two.
    own = [loss.item(), *map(_n_rows_of_gradient, tables)]
    heads = peers.gathered(torch.tensor(own, dtype=torch.float64))
    mean = heads[:, 0].sum() / peers.size
    counts = heads[:, 1:].long()
    is_dense = (counts < 0).any(dim=0).tolist()
    in_rows = []
    for index, table in enumerate(tables):
        # Where one process has a dense gradient, all need to take part in its sum.
        if is_dense[index]:
            table.grad = peers.total(_dense_gradient(table)) / peers.size
        elif counts[:, index].any():
            in_rows.append(index)
    if in_rows:
        n_rows = counts[:, in_rows].tolist()
        _average_rows(peers, [tables[index] for index in in_rows], n_rows)
    return mean.to(loss)


def _n_rows_of_gradient(table: Tensor) -> int:
    """Return how many rows a gradient has, none being 0; that of a dense one is -1."""
    if table.grad is None:
        return 0
    return table.grad._nnz() if table.grad.is_sparse else -1


def _dense_gradient(table: Tensor) -> Tensor:
    if table.grad is None:
        return torch.zeros_like(table)
    return table.grad.to_dense() if table.grad.is_sparse else table.grad


def _average_rows(
    peers: Peers, tables: Sequence[Tensor], n_rows: Sequence[Sequence[int]]
) -> None:
    """Exchange the rows of tables; `n_rows` counts those of every rank and table."""
    ids, values = [], []
    for table in tables:
        grad, none = table.grad, table.detach()[:0]
        ids.append(none.long().ravel() if grad is None else grad._indices()[0])
        values.append((none if grad is None else grad._values()).ravel())
    widths = [table[0].numel() for table in tables]
    n_values = [
        [n * width for n, width in zip(of, widths, strict=True)] for of in n_rows
    ]
    for table, of_ids, of_values in zip(
        tables,
        _gathered(peers, ids, n_rows),
        _gathered(peers, values, n_values),
        strict=True,
    ):
        # (n_rows of all ranks, ...): values of equal ids are summed by the optimizer.
        means = of_values.to(table.dtype).view(-1, *table.shape[1:]) / peers.size
        table.grad = torch.sparse_coo_tensor(
            of_ids[None], means, table.shape, is_coalesced=False, check_invariants=False
        )


def _gathered(
    peers: Peers, parts: Sequence[Tensor], lengths: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Return for each part those of all ranks, one behind the other, in one exchange.

    `lengths` are those of every rank and part.
    """
    own = torch.cat(list(parts))
    # all_gather wants tensors of one size.
    padded = own.new_zeros(max(map(sum, lengths)))
    padded[: len(own)] = own
    found = [
        row[: sum(of)].split(list(of))
        for row, of in zip(peers.gathered(padded), lengths, strict=True)
    ]
    return [torch.cat(of_all) for of_all in zip(*found, strict=True)]


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
        self.sync_every = sync_every

    def make_step(self, run: Run, make: Callable[..., loop.Step]) -> loop.Step:
        """Return what takes a step as in one process, and averages if it is time."""
        step = make()

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
        variables = list(loop.trained_parameters(run.spec))
        # They become views of one buffer, while the variables stay where they are.
        means = [nn.Parameter(v.detach(), requires_grad=False) for v in variables]
        with self.peers.explained():
            average_parameters(iter(means), dist.distributed_c10d._get_default_group())
        for variable, mean in zip(variables, means, strict=True):
            variable.copy_(mean)
        for optimizer in run.spec.optimizers:
            # FTRL computes weights from its slots: the next step would take the mean back.
            rule = rule_of(optimizer)
            if isinstance(rule, Ftrl):
                rule.keep_weights(variables)
