# SPDX-License-Identifier: Apache-2.0
"""The files that a parameter server writes and reads by itself.

A message names a checkpoint, never a path: the server was told its ``model_dir`` when it
was started, and touches nothing but shards in directories of checkpoints directly in it.
So whoever may send messages can't make it write elsewhere.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skest._tensor_files import Rows
from skest.checkpoint_format import STATE, checksum
from skest.distributed.frozen_rows import FrozenPart
from skest.distributed.placement import n_rows_of
from skest.distributed.sharded_checkpoint import AnyRows, Shard, read_shard, write_shard
from skest.distributed.variables import Part, Variables

__all__ = ["read_part", "shard_of", "write_part"]

# Directories of `skest.checkpoint_store`, while they are made and when they are complete.
_BEING_MADE = re.compile(r"\.tmp-[0-9a-f]{32}")
_COMPLETE = re.compile(r"ckpt-\d+(-\d+)?")


def write_part(
    model_dir: Path | None,
    name: Any,
    shard: Shard[AnyRows],
) -> dict[str, Any] | None:
    """Write the files of a server into a checkpoint that is being made.

    Parameters
    ----------
    model_dir : Path or None
        Where checkpoints are; None is nowhere.
    name : str
        Of the directory in it that the chief has made.
    shard : Shard
        What to write.

    Returns
    -------
    dict or None
        What `skest.distributed.sharded_checkpoint.write_shard` returns; None if there is
        no such directory here: the chief has another file system, and writes itself.

    Raises
    ------
    OSError
        If a file can't be written.
    """
    directory = _directory(model_dir, name, _BEING_MADE)
    return None if directory is None else write_shard(directory, shard)


def read_part(
    model_dir: Path | None,
    name: Any,
    checksum_of_state: Any,
    variables: Variables,
    ps: int,
    optimizers: list[dict[str, Any]],
) -> Part | None:
    """Read what a server will hold from a checkpoint of any number of servers.

    Parameters
    ----------
    model_dir : Path or None
        Where checkpoints are; None is nowhere.
    name : str
        Of a directory in it.
    checksum_of_state : int
        Of its ``state.json``, as the chief sees it.
    variables : Variables
        Of the model.
    ps : int
        Number of this server.
    optimizers : list of dict
        As in the `Part`.

    Returns
    -------
    Part or None
        None if the checkpoint is not here, is another one, or can't be read: the chief
        reads it then, and knows why if it can't either.
    """
    directory = _directory(model_dir, name, _COMPLETE)
    if directory is None:
        return None
    whole = [
        v.name for kind in ("dense", "constant") for v in variables.of_kind(kind, ps)
    ]
    tables = [v.name for v in variables.of_kind("table")]
    try:
        if checksum(directory / STATE) != checksum_of_state:
            return None
        found = read_shard(directory, ps, variables.num_ps, dense=whole, tables=tables)
    except (OSError, ValueError):
        return None
    named = {**found.dense, **found.tables}
    tensors = {f"variable:{name}": tensor for name, tensor in named.items()}
    return Part(optimizers, {**tensors, **found.slots, **found.table_slots})


def shard_of(
    variables: Variables, ps: int, part: Part | FrozenPart, aliases: Mapping[str, str]
) -> Shard[Rows]:
    """Return what a server writes of its state.

    Parameters
    ----------
    variables : Variables
        Of the model.
    ps : int
        Number of the server.
    part : Part
        Its dense variables and tables, with their slots.
    aliases : dict of str to str
        Other names under which variables are saved too, each with its first.
    """
    by_name = {v.name: v for v in variables.all}
    groups: dict[tuple[bool, bool], dict[str, Rows]] = {
        (is_slot, is_cut): {} for is_slot in (False, True) for is_cut in (False, True)
    }
    for key, tensor in part.tensors.items():
        owner, _, rest = key.partition(":")
        is_slot = owner != "variable"
        v = by_name[rest.rpartition("/")[0] if is_slot else rest]
        n_rows = n_rows_of(v.shape[0], ps, variables.num_ps) if v.ps == -1 else -1
        is_cut = tensor.shape == (n_rows, *v.shape[1:])
        if v.ps == -1 and not is_cut and ps != 0:
            continue  # a number that every server has: one saves it
        groups[is_slot, is_cut][key if is_slot else rest] = tensor
    for is_cut in (False, True):
        of = groups[False, is_cut]
        of |= {other: of[name] for other, name in aliases.items() if name in of}
    dense, tables = groups[False, False], groups[False, True]
    slots, table_slots = groups[True, False], groups[True, True]
    return Shard(ps, variables.num_ps, dense, tables, slots, table_slots)


def _directory(
    model_dir: Path | None, name: Any, allowed: re.Pattern[str]
) -> Path | None:
    """Return the directory of a checkpoint if it may be used, and is there."""
    if model_dir is None or not isinstance(name, str) or not allowed.fullmatch(name):
        return None
    path = model_dir / name
    # A link would lead elsewhere.
    return path if path.is_dir() and not path.is_symlink() else None
