# SPDX-License-Identifier: Apache-2.0
"""How the chief lets parameter servers write and read a checkpoint in parts.

Servers write and read their files themselves. For one that does not see the directory of
the chief, values travel, those of one server at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from skest.checkpoint_format import STATE, ShardedCheckpoint, checksum, reading
from skest.checkpoints import Checkpoint
from skest.distributed.client import PSClient, StaleGenerationError
from skest.distributed.hidden_variables import elsewhere_of, hidden
from skest.distributed.shard_files import shard_of
from skest.distributed.sharded_checkpoint import index_of, write_shard
from skest.distributed.variables import Variables, merged_options, options_of
from skest.distributed.wire import Message, Op
from skest.exceptions import PeerLostError

__all__ = ["NotSavedError", "restore", "sharded"]

# What a file system does at the least; a server that takes longer counts as lost.
_BYTES_PER_SECOND = 10_000_000


class NotSavedError(Exception):
    """A server was lost while a checkpoint was written; what was written is gone."""


def sharded(
    client: PSClient,
    variables: Variables,
    network: nn.Module,
    replies: Sequence[Message],
    capture: Callable[[], Checkpoint],
) -> ShardedCheckpoint:
    """Return a checkpoint whose larger part the servers write.

    Parameters
    ----------
    client : PSClient
        Asks the servers; their last snapshot is what is written.
    variables : Variables
        Of the network.
    network : nn.Module
        Its buffers, and what else no server has, are written by this process.
    replies : sequence of Message
        What `PSClient.take_snapshot` returned.
    capture : callable
        Returns a checkpoint of what is in this process.

    Returns
    -------
    ShardedCheckpoint
        To write it raises OSError if a server can't write, `NotSavedError` if one is
        lost, and NanLossDuringTrainingError if a variable is NaN.
    """
    elsewhere, others = elsewhere_of(variables, network)
    with hidden(network, elsewhere | others.keys()):
        captured = capture()
    random = {k: t for k, t in captured.optimizer.items() if k.startswith("random:")}
    parts = [reply.control["optimizers"] for reply in replies]
    scalars = merged_options(captured.scalars, parts)

    def write(directory: Path) -> Mapping[str, Any]:
        try:
            return _write_shards(client, variables, replies, others, directory)
        except (PeerLostError, StaleGenerationError) as error:
            raise NotSavedError(str(error)) from error

    own = replace(captured, optimizer=random, scalars=scalars)
    return ShardedCheckpoint(own, write)


def _write_shards(
    client: PSClient,
    variables: Variables,
    replies: Sequence[Message],
    others: Mapping[str, str],
    directory: Path,
) -> dict[str, Any]:
    """Let every server write the copy that it took; return the index of all."""
    control = {"directory": directory.name, "aliases": dict(others)}
    largest = max(client.snapshot_bytes(reply) for reply in replies)
    answers = client.ask_all(
        Message(Op.WRITE, control=control), more_seconds=largest / _BYTES_PER_SECOND
    )
    records = []
    for ps, answer in enumerate(answers):
        if failure := answer.control.get("failure"):
            raise OSError(
                f"The ps at {client.addresses[ps]} could not write: {failure}"
            )
        record = answer.control["record"]
        if record is None:
            part = client.fetch(ps, replies[ps])
            record = write_shard(directory, shard_of(variables, ps, part, others))
        records.append(record)
    return index_of(records)


def restore(
    client: PSClient,
    variables: Variables,
    network: nn.Module,
    optimizers: Sequence[Optimizer],
    path: Path,
    generation: int,
) -> int | None:
    """Let every server read what it will hold from a checkpoint.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    variables : Variables
        Of the network.
    network, optimizers
        As `skest.distributed.variables.split` takes them.
    path : Path
        Directory of the checkpoint.
    generation : int
        That of the servers from then on.

    Returns
    -------
    int or None
        Global step of the checkpoint; None, and nothing is changed, if a server can't
        read it.
    """
    with reading(path) as files:
        state = files.state
        size = sum((path / name).stat().st_size for name in state["files"])
        mark = checksum(path / STATE)
    described = options_of(variables, network, optimizers, state["scalars"])
    step = int(state["global_step"])
    requests = {
        ps: Message(
            Op.RESTORE,
            control={
                "directory": path.name,
                "checksum": mark,
                "variables": variables.to_json(),
                "optimizers": of_ps,
                "generation": generation,
                "step": step,
            },
        )
        for ps, of_ps in enumerate(described)
    }
    client.generation = generation
    replies = client.begin(requests)(size / _BYTES_PER_SECOND)
    if not all(reply.control["is_here"] for reply in replies.values()):
        return None
    client.commit(step)
    return step
