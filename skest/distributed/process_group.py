# SPDX-License-Identifier: Apache-2.0
"""Processes that torchrun started, and trainings in which all go in step."""

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import CheckpointStore, MemoryStore
from skest.core.console import INTERRUPTED
from skest.core.random import child_seed
from skest.core.resources import resolve_device
from skest.distributed.layout import outline, room_for
from skest.engine.loop import INPUT_ENDED, Replica
from skest.engine.recorded.recording import map_leaves
from skest.exceptions import PeerLostError
from skest.hooks.base import Run
from skest.inputs.input_context import context_among
from skest.optimizers.dual_ascent import DualAscent
from skest.optimizers.row_sparse import rule_of

_logger = logging.getLogger("skest")

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FAILURE = "failure"
# How often one that waits looks whether another has left, long before the timeout.
_POLL = datetime.timedelta(seconds=0.5)
_STOPPED = "another process asked to stop"
# In this order: what all of them stop for if it holds for one, the first that does.
_REASONS = (INTERRUPTED, _STOPPED, INPUT_ENDED)
_RANKS = "ranks"
_TENSORS = ("variables", "optimizer")  # of a checkpoint


class Peers:
    """The default process group of ``torch.distributed``, and why one of it was left.

    It is made from the environment of torchrun unless it is there already, and stays for
    later trainings of the process, until one ends with an error.

    Parameters
    ----------
    strategy : str
        Who needs it, for errors.
    timeout : float, seconds
        How long to wait for another process before it counts as lost.
    use_cuda : bool, default=False
        Whether tensors on GPUs are exchanged as well (with NCCL); those on the CPU are
        by gloo.

    Attributes
    ----------
    rank, size : int
        Number of this process, from 0, and of all.

    Raises
    ------
    ValueError
        If the variables of torchrun are not set.
    PeerLostError
        If the other processes don't come in time.
    """

    def __init__(
        self, strategy: str, timeout: float, *, use_cuda: bool = False
    ) -> None:
        self._timeout = datetime.timedelta(seconds=timeout)
        if not dist.is_initialized():
            _check_environment(strategy)
            # Counts and reasons to stop go by gloo also beside GPUs: who waits for NCCL
            # waits for all that the GPU still has to do.
            self._join("cpu:gloo,cuda:nccl" if use_cuda else "gloo")
        # There is no public way to it.
        self._store = dist.distributed_c10d._get_default_store()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def _join(self, backend: str) -> None:
        try:
            store, rank, size = next(dist.rendezvous("env://", timeout=self._timeout))
            # The store of torchrun outlives a group, whose keys must not be found again.
            n_joined = store.add(f"skest/joined/{rank}", 1)
            store = dist.PrefixStore(f"skest/{n_joined}", store)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=self._timeout
            )
        except RuntimeError as error:
            raise PeerLostError(
                f"'WORLD_SIZE' is {os.environ['WORLD_SIZE']}, but not so many processes "
                f"came together within {self._timeout.total_seconds():g} seconds. Look "
                "at the output of the others, and start all again."
            ) from error

    def leave(self, reason: str) -> None:
        """Give the group up; the others learn why when they wait for this process."""
        text = f"rank {self.rank}: {reason}"
        # The store may be gone with the process that kept it.
        with contextlib.suppress(dist.DistError):
            # The first reason stays: others are its consequences.
            self._store.compare_set(_FAILURE, "", text)
        dist.destroy_process_group()

    def gathered(self, tensor: Tensor) -> Tensor:
        """Return tensors of one shape of all processes, put one above the other.

        Parameters
        ----------
        tensor : Tensor
            That of this process.

        Returns
        -------
        Tensor of shape (size, ...)
            By rank.
        """
        found = tensor.new_empty((self.size, *tensor.shape))
        # A row for each, because gloo wants outputs in the shape of the input.
        self._exchange(dist.all_gather, list(found), tensor.contiguous())
        return found

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        self._exchange(dist.all_reduce, tensor)
        return tensor

    def objects(self, own: Any) -> list[Any]:
        """Return what all processes have, by rank.

        JSON must hold it: what others send must not make this process run any code.
        """
        # Not all_gather_object of torch, which unpickles what others send.
        text = json.dumps(own).encode()
        sizes = self.gathered(torch.tensor(len(text))).tolist()
        padded = bytearray(text.ljust(max(sizes)))
        rows = self.gathered(torch.frombuffer(padded, dtype=torch.uint8))
        # JSON may end with blanks.
        return [json.loads(bytes(row.tolist())) for row in rows]

    def shared(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return the checkpoint of rank 0, on which the others give None."""
        if self.size == 1:
            return checkpoint
        # First what there is, so that all make room for it; the values follow as bytes.
        described = None if checkpoint is None else dict(vars(checkpoint))
        if described is not None:
            described |= {kind: outline(described[kind]) for kind in _TENSORS}
        (first, *_) = self.objects(described)
        if first is None:
            return None
        if checkpoint is None:
            rooms = {kind: room_for(first[kind]) for kind in _TENSORS}
            checkpoint = Checkpoint(**{**first, **rooms})
        for tensor in (*checkpoint.variables.values(), *checkpoint.optimizer.values()):
            if tensor.numel():
                # gloo knows bytes; the stride of a single element may be anything.
                flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
                self._exchange(dist.broadcast, flat.view(torch.uint8), 0)
        return checkpoint

    def _exchange(self, operation: Callable[..., Any], *args: Any) -> None:
        """Take part in an operation; its last tensor says where it takes place."""
        with self.explained():
            work = operation(*args, async_op=True)
            (*_, tensor) = [arg for arg in args if isinstance(arg, Tensor)]
            if tensor.device.type == "cpu":
                self._wait(work)
            else:  # it only puts streams in order, and does not block
                work.wait()

    def _wait(self, work: Any) -> None:
        """Wait for an operation, and meanwhile look whether somebody has left."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            try:
                work.wait(_POLL)
                return
            except RuntimeError:
                # A wait that was too short raises, as an operation does that has
                # failed.
                is_over = work.is_completed() or time.monotonic() > deadline
                if is_over or self._store.check([_FAILURE]):
                    raise

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error of communication into one that tells who is missing."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PeerLostError) or not _is_of_communication(error):
                raise
            raise PeerLostError(
                f"A process of this training has ended or does not answer "
                f"({self._reason() or str(error).strip()}). All go in step, so this one "
                f"(rank {self.rank} of {self.size}) ends, too. Look at the output of the "
                "other, and start all again: training goes on from the latest checkpoint."
            ) from error

    def _reason(self) -> str:
        with contextlib.suppress(dist.DistError):
            if self._store.check([_FAILURE]):
                return self._store.get(_FAILURE).decode(errors="replace")
        return ""


def _check_environment(strategy: str) -> None:
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"{strategy} trains in processes that torchrun starts, but of its "
            f"environment variables {', '.join(map(repr, missing))} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Start the program with\n"
            "    torchrun --nproc-per-node 2 train.py\n"
            "or, on several machines, see the documentation of torchrun."
        )


def _is_of_communication(error: RuntimeError) -> bool:
    """Tell whether an error comes from torch.distributed, not from the model."""
    # By its words: most of these are plain RuntimeErrors.
    words = (
        *("gloo", "nccl", "tcpstore", "pair closure"),
        *("operation timed out", "connection closed", "connection reset"),
    )
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in words)


class SynchronousReplica(Replica):
    """One of the processes that torchrun started for a training in step.

    Rank 0 is the chief. All begin with its checkpoint or with its initial variables, and
    stop together: when the input of one has ended, a hook of one asks to stop, or one is
    interrupted. If one ends by an error, the others raise `PeerLostError`: within a
    second if they wait for it between two steps, at once if its process has ended, and
    after `timeout` at the latest.

    All need to see the same ``model_dir``. Without one, or where each has a name of its
    own for it, as in ``fit``, the chief sends its last checkpoint to the others, which
    keep it in memory.

    Parameters
    ----------
    device : str or torch.device, default="auto"
        As in `skest.RunConfig`. On a machine with GPUs each process takes that of its
        number on the machine (``LOCAL_RANK``).
    timeout : float, seconds, default=1800
        How long to wait for another process, also while the chief saves or evaluates.

    Raises
    ------
    ValueError
        When it is entered: if the program was not started by torchrun, or there are
        fewer GPUs than processes on this machine.
    PeerLostError
        From all other methods, if another process is missing.
    """

    strategy = "A training in step"
    peers: Peers  # from `with` on

    def __init__(self, device: Any = "auto", timeout: float = 1800.0) -> None:
        self._device = device
        self._timeout = timeout
        self._exit = contextlib.ExitStack()
        self._is_resumed = False
        self._is_over = False
        self._has_left = False
        self._positions: list[dict[str, Any]] = []
        self._store: CheckpointStore = MemoryStore()

    def __enter__(self) -> Self:
        use_cuda = resolve_device(self._device).type == "cuda"
        if use_cuda:
            # NCCL takes no two processes of a group on one GPU.
            self._exit.enter_context(torch.cuda.device(_local_device()))
        try:
            self.peers = Peers(self.strategy, self._timeout, use_cuda=use_cuda)
        except BaseException:
            self._exit.close()
            raise
        self.is_chief = self.peers.rank == 0
        self.input_context = context_among(self.peers.size, self.peers.rank)
        return self

    def __exit__(self, *exc_info: object) -> None:
        error = exc_info[1]
        reason = "it made no steps; its input may have no batch"
        try:
            if not self._has_left:  # the others wait for this process
                self.peers.leave(
                    f"{type(error).__name__}: {error}" if error else reason
                )
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the network and of the device."""
        self._exit.close()

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return what the chief goes on from, for this process."""
        self._store = store
        found = self.peers.shared(store.latest() if self.is_chief else None)
        self._is_resumed = found is not None
        if found is None:
            return None
        position = self._own_position(found.input_position)
        if self.is_chief:
            return dataclasses.replace(found, input_position=position)
        # The chief's generators would give all processes the same random numbers.
        own = {k: v for k, v in found.optimizer.items() if not k.startswith("random:")}
        return dataclasses.replace(found, optimizer=own, input_position=position)

    def _own_position(
        self, position: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Return where this process goes on in its own part of the input."""
        if position is None:
            return None
        # One without ranks is that of a training in one process.
        of_ranks = position.get(_RANKS, [position])
        if len(of_ranks) == self.peers.size:
            return {**position, **of_ranks[self.peers.rank]}
        _logger.warning(
            "The input starts anew: the interrupted training was one of %d processes, "
            "now there are %d.",
            len(of_ranks),
            self.peers.size,
        )
        return None

    def seed(self, seed: int | None, start: int) -> int | None:
        """Return a seed of this process: that of the others gives other numbers."""
        if seed is None or self.is_chief:
            return seed
        return child_seed(seed, self.peers.rank, start)

    def begin(self, run: Run) -> None:
        """Begin with the variables of the chief."""
        for optimizer in run.spec.optimizers:
            rule = rule_of(optimizer)
            if isinstance(rule, DualAscent):
                raise ValueError(
                    "LinearSDCA has no gradients that processes could exchange. Train "
                    "in one process, or with another optimizer."
                )
        if self.peers.size == 1:
            return
        captured = run.capture_checkpoint()
        own = captured.input_position or {}
        self._positions = self.peers.objects(
            {key: own[key] for key in ("input", "seeds") if key in own}
        )
        if not self._is_resumed:
            first = self.peers.shared(captured if self.is_chief else None)
            if not self.is_chief and first is not None:
                spec = run.spec
                first.restore(run.network, spec.optimizers, spec.lr_schedulers)

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint, which knows of the inputs of all processes."""
        found = capture(run)
        if found.input_position is None or not self._positions:
            return found
        # A training by other processes must not take it for a place in its own input.
        part = f"{found.input_position['input']}, part 1 of {self.peers.size}"
        position = {**found.input_position, "input": part, _RANKS: self._positions}
        return dataclasses.replace(found, input_position=position)

    def agree(self, run: Run, reason: str | None = None, n: int = 0) -> int | None:
        """Go on only if all do; all must call it, and equally often.

        Parameters
        ----------
        run : Run
            It is asked to stop if another process stops.
        reason : str, default=None
            Why this process stops; None if it goes on.
        n : int, default=0
            A number to be summed up.

        Returns
        -------
        int or None
            The sum over all processes; None if they stop.
        """
        own = _STOPPED if reason is not None and reason not in _REASONS else reason
        # One exchange a step: all see the same sums, and so stop behind the same one.
        counts = torch.tensor([*(own == r for r in _REASONS), n], dtype=torch.int64)
        *stopping, total = self.peers.total(counts).tolist()
        for common, count in zip(_REASONS, stopping, strict=True):
            if count:
                self._is_over = True
                run.request_stop(common)
                return None
        return total

    def finish(self, run: Run) -> None:
        """Tell the others that this process stops, if they don't know."""
        if not self._is_over:
            self.agree(run, run.stop_reason or INPUT_ENDED)

    def leave(self, run: Run) -> None:
        """Wait until the chief has saved, so that all have what it saved."""
        name = None if run.model_dir is None else Path(run.model_dir).name
        names = {*self.peers.objects(name)}
        # Who has another directory than the chief, or none, is sent what was saved.
        if len(names) > 1 or name is None:
            saved = self.peers.shared(self._store.latest() if self.is_chief else None)
            self.result = None if self.is_chief else saved
        # From here on no other process waits for this one.
        self._has_left = True


def rows_of(data: Any) -> int | None:
    """Return the number of rows of the first tensor in a nest of tensors."""
    tensors: list[Tensor] = []
    map_leaves(data, Tensor, tensors.append)
    return next((len(tensor) for tensor in tensors if tensor.ndim), None)


def _local_device() -> int:
    """Return the number of the GPU for this process."""
    local, n_devices = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if local >= n_devices:
        raise ValueError(
            f"This is process {local} of its machine ('LOCAL_RANK', from 0), which has "
            f"{n_devices} GPU(s); each process needs one. Start torchrun with "
            f"--nproc-per-node {n_devices}, or train with device='cpu'."
        )
    return local
