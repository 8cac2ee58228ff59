# SPDX-License-Identifier: Apache-2.0
"""The processes that torchrun started, for trainings in which all go in step."""

import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from skest.checkpoints import Checkpoint
from skest.exceptions import PeerLostError

__all__ = ["Peers"]

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FAILURE = "failure"
_POLL = datetime.timedelta(seconds=0.5)


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
        if not dist.is_available():
            raise RuntimeError(
                f"{strategy} needs torch.distributed, which this build of PyTorch lacks."
            )
        if not dist.is_initialized():
            _check_environment(strategy)
            self._join("cpu:gloo,cuda:nccl" if use_cuda else "gloo")
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
        with _ignoring_the_lost():
            self._store.compare_set(_FAILURE, "", text)
        dist.destroy_process_group()

    def summed(self, values: Sequence[int]) -> list[int]:
        """Return the sums of numbers over all processes."""
        tensor = torch.tensor(values, dtype=torch.int64)
        with self.explained():
            self._wait(dist.all_reduce(tensor, async_op=True))
        return tensor.tolist()

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
        with self.explained():
            # A row for each, because gloo wants outputs in the shape of the input.
            work = dist.all_gather(list(found), tensor.contiguous(), async_op=True)
            self._wait(work, tensor)
        return found

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        with self.explained():
            self._wait(dist.all_reduce(tensor, async_op=True), tensor)
        return tensor

    def texts(self, text: str) -> list[str]:
        """Return texts of all processes, by rank."""
        own = _bytes_of(text)
        sizes = self.gathered(torch.tensor(len(own))).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(own)] = own
        rows = self.gathered(padded)
        return [_text_of(row[:n]) for row, n in zip(rows, sizes, strict=True)]

    def shared(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return the checkpoint of rank 0, on which the others give None."""
        if self.size == 1:
            return checkpoint
        (text, *_) = self.texts("" if checkpoint is None else _description(checkpoint))
        if not text:
            return None
        found = json.loads(text)
        kept: Mapping[str, Any] = {} if checkpoint is None else vars(checkpoint)
        for kind in ("variables", "optimizer"):
            found[kind] = {
                name: self._tensor_of_first(kept.get(kind, {}).get(name), *like)
                for name, like in found[kind].items()
            }
        return checkpoint or Checkpoint(**found)

    def _tensor_of_first(
        self, kept: Tensor | None, dtype: str, shape: list[int]
    ) -> Tensor:
        if kept is None:
            kept = torch.empty(shape, dtype=getattr(torch, dtype))
        if kept.numel():
            kept = kept.contiguous()
            # The stride of a single element may be anything.
            content = kept.as_strided((kept.numel(),), (1,)).view(torch.uint8)
            with self.explained():
                self._wait(dist.broadcast(content, 0, async_op=True))
        return kept

    def _wait(self, work: Any, tensor: Tensor | None = None) -> None:
        """Wait for an operation, and meanwhile look whether somebody has left."""
        if tensor is not None and tensor.device.type != "cpu":
            work.wait()
            return
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            try:
                work.wait(_POLL)
                return
            except RuntimeError:
                is_over = work.is_completed() or time.monotonic() > deadline
                if is_over or self._store.check([_FAILURE]):
                    raise

    @contextmanager
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
        with _ignoring_the_lost():
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
    words = (
        *("gloo", "nccl", "tcpstore", "pair closure"),
        *("operation timed out", "connection closed", "connection reset"),
    )
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in words)


@contextmanager
def _ignoring_the_lost() -> Iterator[None]:
    """Pass over a store that is gone with the process that kept it."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError):
            raise


def _description(checkpoint: Checkpoint) -> str:
    """Return all of a checkpoint but the content of its tensors, as JSON."""
    fields = dict(vars(checkpoint))
    for kind in ("variables", "optimizer"):
        fields[kind] = {
            name: (str(value.dtype).removeprefix("torch."), list(value.shape))
            for name, value in fields[kind].items()
        }
    return json.dumps(fields)


def _bytes_of(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _text_of(content: Tensor) -> str:
    return bytes(content.tolist()).decode()
