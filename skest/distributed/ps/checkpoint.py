# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that parameter servers write and read in parts."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import (
    STATE,
    ShardedCheckpoint,
    StoredTensor,
    checksum,
    reading,
    shard_length,
)
from skest.core.tensor_files import Rows, write_in_blocks
from skest.distributed.ps.client import PSClient
from skest.distributed.ps.messages import Message, Op
from skest.distributed.ps.transfer import blocks_of
from skest.distributed.ps.variables import (
    AnyRows,
    Part,
    Variable,
    Variables,
    elsewhere_of,
    hidden,
    merged_options,
    n_rows_of,
    options_of,
    rows_of,
)
from skest.exceptions import CheckpointMismatchError, NanLossDuringTrainingError

_KINDS = ("variables", "optimizer")


@dataclass(frozen=True, eq=False)
class Shard(Generic[AnyRows]):
    """What parameter server `index` of `n_ps` has of a checkpoint.

    Parameters
    ----------
    index, n_ps : int
        Number of the server, from 0, and of all servers.
    dense : dict of str to Tensor, default={}
        Variables that are here as a whole.
    tables : dict of str to Tensor, default={}
        Rows ``index, index + n_ps, ...`` of variables of which every server has a part.
    slots : dict of str to Tensor, default={}
        Slots of optimizers that are here as a whole, by the names that they have in
        `Checkpoint.optimizer`: ``"<number of the optimizer>:<variable>/<slot>"``.
        To be written, each must be in one shard only, also a number that belongs to a
        table; when read, such a number is in the shard of every server.
    table_slots : dict of str to Tensor, default={}
        The same rows of slots that have a value for every element of a table.
    """

    index: int
    n_ps: int
    dense: Mapping[str, AnyRows] = field(default_factory=dict)
    tables: Mapping[str, AnyRows] = field(default_factory=dict)
    slots: Mapping[str, AnyRows] = field(default_factory=dict)
    table_slots: Mapping[str, AnyRows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.n_ps:
            raise ValueError(
                f"'index' of a Shard must be from 0 to {self.n_ps - 1}, for "
                f"'n_ps'={self.n_ps}; got {self.index}."
            )

    def _kinds(
        self,
    ) -> Iterable[tuple[str, Mapping[str, AnyRows], Mapping[str, AnyRows]]]:
        yield "variables", self.dense, self.tables
        yield "optimizer", self.slots, self.table_slots


def write_shard(directory: Path, shard: Shard[AnyRows]) -> dict[str, Any]:
    """Write the files of a shard into the directory of a checkpoint that is made.

    Parameters
    ----------
    directory : Path
        As ``write_shards`` of `skest.checkpoints.format.ShardedCheckpoint` gets it; all
        servers and the chief see it under this name.
    shard : Shard
        Tensors on the CPU. They are not copied, and read once, in blocks of rows.

    Returns
    -------
    dict
        A record for `index_of`; JSON holds it.

    Raises
    ------
    OSError
        If a file can't be written.
    """
    record: dict[str, Any] = {"index": shard.index, "n_ps": shard.n_ps, "files": {}}
    nan: dict[str, None] = {}

    def look(name: str, block: Tensor) -> None:
        if block.sum().isnan() and block.isnan().any():
            nan[name] = None

    for kind, dense, tables in shard._kinds():
        name = f"{kind}-{shard.index:05d}-of-{shard.n_ps:05d}.safetensors"
        # Slots may be NaN.
        looks = [look] if kind == "variables" else []
        record["files"][name] = write_in_blocks(
            {**dense, **tables}, directory / name, *looks
        )
        record[kind] = {
            "file": name,
            "dense": list(dense),
            "tables": {key: list(value.shape) for key, value in tables.items()},
        }
    return {**record, "nan": list(nan)}


def index_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the records of all shards together.

    Parameters
    ----------
    records : sequence of dict
        One of `write_shard` for each server, in any order.

    Returns
    -------
    dict
        What ``write_shards`` of `skest.checkpoints.format.ShardedCheckpoint` returns:
        ``files`` with their checksums, ``n_ps``, and for "variables" and "optimizer"
        ``dense`` with the file of every name and ``tables`` with ``rows``, ``dim``,
        ``strategy`` and ``files``.

    Raises
    ------
    ValueError
        If a shard is missing or there twice, if something is in two of them that should
        be in one, or if the parts of a table don't fit together.
    NanLossDuringTrainingError
        If a variable is NaN: training from there would never come to anything.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from skest.distributed.ps.checkpoint import Shard, index_of, write_shard
    >>> table, directory = torch.arange(6.0).reshape(3, 2), Path(tempfile.mkdtemp())
    >>> records = [
    ...     write_shard(directory, Shard(i, 2, tables={"table": table[i::2]}))
    ...     for i in range(2)
    ... ]
    >>> index_of(records)["variables"]["tables"]["table"]["rows"]
    3
    """
    ordered = sorted(records, key=lambda record: record["index"])
    n_ps = len(ordered)
    found = [(record["index"], record["n_ps"]) for record in ordered]
    if found != [(i, n_ps) for i in range(n_ps)] or not found:
        listed = ", ".join(f"{index} of {n}" for index, n in found) or "none"
        raise ValueError(
            "The shards of a checkpoint must be those of all parameter servers, once "
            f"each; got {listed}."
        )
    if nan := [name for record in ordered for name in record["nan"]]:
        raise NanLossDuringTrainingError(
            f"The variables {', '.join(map(repr, dict.fromkeys(nan)))} are NaN; they are "
            "not saved. Lower the learning rate, or clip the gradients."
        )
    index: dict[str, Any] = {"n_ps": n_ps, "files": {}}
    for record in ordered:
        index["files"] |= record["files"]
    for kind in _KINDS:
        parts = [record[kind] for record in ordered]
        index[kind] = {"dense": _dense_of(parts), "tables": _tables_of(parts)}
    return index


def _dense_of(parts: list[Mapping[str, Any]]) -> dict[str, str]:
    files: dict[str, str] = {}
    for part in parts:
        for name in part["dense"]:
            if name in files:
                raise ValueError(
                    f"{name!r} is in {files[name]} and in {part['file']}; what is not "
                    "cut into rows must be in one shard."
                )
            files[name] = part["file"]
    return files


def _tables_of(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for part in parts for name in part["tables"])
    tables = {}
    for name in names:
        shapes = [part["tables"].get(name) for part in parts]
        n_rows = sum(shape[0] for shape in shapes if shape)
        expected = [
            [shard_length(n_rows, i, len(parts)), *(shapes[0] or [])[1:]]
            for i in range(len(parts))
        ]
        if shapes != expected:
            raise ValueError(
                f"The parts of the table {name!r} don't fit together: their shapes are "
                f"{shapes}, not {expected}."
            )
        tables[name] = {
            "rows": n_rows,
            "dim": expected[0][1:],
            "strategy": "mod",
            "files": [part["file"] for part in parts],
        }
    return tables


def read_shard(
    path: Path,
    index: int,
    n_ps: int,
    *,
    dense: Iterable[str] = (),
    tables: Iterable[str] = (),
) -> Shard[Tensor]:
    """Read what one parameter server will have, from any checkpoint.

    Only the rows that it will have are copied; the other pages of a file are read for
    its checksum, and files in which there is nothing for this server not at all.

    Parameters
    ----------
    path : Path
        Directory of the checkpoint: an ordinary one, or one of any number of servers.
    index, n_ps : int
        Which server of how many.
    dense : iterable of str, default=()
        Variables that this server will have as a whole.
    tables : iterable of str, default=()
        Variables of which it will have its rows.

    Returns
    -------
    Shard
        With the slots of all optimizers for these variables.

    Raises
    ------
    CheckpointMismatchError
        If the checkpoint lacks a variable.
    CorruptCheckpointError, OSError
        As `skest.checkpoints.format.read_checkpoint`.
    """
    dense, tables = list(dense), list(tables)
    with reading(Path(path)) as files:
        variables, slots = (files.stored(kind) for kind in _KINDS)
        missing = sorted({*dense, *tables} - variables.keys())
        if not missing:
            of_dense = [name for name in slots if _variable_of(name) in dense]
            of_tables = [name for name in slots if _variable_of(name) in tables]
            cut = [
                n for n in of_tables if _is_cut(slots[n], variables[_variable_of(n)])
            ]
            whole = [*of_dense, *(n for n in of_tables if n not in cut)]
            return Shard(
                index,
                n_ps,
                {name: variables[name].whole().clone() for name in dense},
                {name: variables[name].shard(index, n_ps) for name in tables},
                {name: slots[name].whole().clone() for name in whole},
                {name: slots[name].shard(index, n_ps) for name in cut},
            )
    raise CheckpointMismatchError(
        f"The checkpoint {str(path)!r} lacks the variables "
        f"{', '.join(map(repr, missing))}. Build the network as it was, or train it in "
        "a new model_dir."
    )


def _variable_of(slot: str) -> str:
    """Return the variable in ``"<number>:<variable>/<slot>"``."""
    return slot.partition(":")[2].rpartition("/")[0]


def _is_cut(slot: StoredTensor, table: StoredTensor) -> bool:
    """Tell whether a slot of a table has a value for each of its elements."""
    if slot.n_rows is not None or table.n_rows is not None:
        return slot.n_rows == table.n_rows
    return slot.whole().shape == table.whole().shape


# Directories of `skest.checkpoints.store`, while they are made and when they are complete.
_BEING_MADE = re.compile(r"\.tmp-[0-9a-f]{32}")
_COMPLETE = re.compile(r"ckpt-\d+(-\d+)?")


def write_part(
    model_dir: Path | None, name: Any, shard: Shard[AnyRows]
) -> dict[str, Any]:
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
    dict
        What `write_shard` returns.

    Raises
    ------
    OSError
        If a file can't be written, or there is no such directory.
    """
    return write_shard(_directory(model_dir, name, _BEING_MADE), shard)


def read_part(
    model_dir: Path | None,
    name: Any,
    checksum_of_state: Any,
    variables: Variables,
    ps: int,
    optimizers: list[dict[str, Any]],
) -> Part[Tensor]:
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

    Raises
    ------
    OSError
        If it is not here, or is another one than the chief sees.
    ValueError
        If it can't be read.
    """
    directory = _directory(model_dir, name, _COMPLETE)
    whole = [
        v.name for kind in ("dense", "constant") for v in variables.of_kind(kind, ps)
    ]
    tables = [v.name for v in variables.of_kind("table")]
    if checksum(directory / STATE) != checksum_of_state:
        raise OSError(f"{str(directory)!r} is not what the chief sees there. {_SHARED}")
    found = read_shard(directory, ps, variables.num_ps, dense=whole, tables=tables)
    named = {**found.dense, **found.tables}
    tensors = {f"variable:{name}": tensor for name, tensor in named.items()}
    return Part(optimizers, {**tensors, **found.slots, **found.table_slots})


def shard_of(
    variables: Variables, ps: int, part: Part[Rows], aliases: Mapping[str, str]
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


_SHARED = "All tasks must see the same 'model_dir'."


def _directory(model_dir: Path | None, name: Any, allowed: re.Pattern[str]) -> Path:
    """Return the directory of a checkpoint, if it may be used and is there."""
    if model_dir is None:
        raise OSError(f"There is no 'model_dir' here. {_SHARED}")
    path = model_dir / str(name)
    # A link would lead elsewhere.
    if not allowed.fullmatch(str(name)) or not path.is_dir() or path.is_symlink():
        raise OSError(f"There is no checkpoint {str(path)!r} here. {_SHARED}")
    return path


# What a file system does at the least; a server that takes longer counts as lost.
_BYTES_PER_SECOND = 10_000_000


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
        To write it raises OSError if a server can't write, PeerLostError if one is
        lost, and NanLossDuringTrainingError if a variable is NaN.
    """
    elsewhere, others = elsewhere_of(variables, network)
    with hidden(network, elsewhere | others.keys()):
        captured = capture()
    random = {k: t for k, t in captured.optimizer.items() if k.startswith("random:")}
    parts = [reply.control["optimizers"] for reply in replies]
    scalars = merged_options(captured.scalars, parts)

    def write(directory: Path) -> Mapping[str, Any]:
        return _write_shards(client, replies, others, directory)

    own = replace(captured, optimizer=random, scalars=scalars)
    return ShardedCheckpoint(own, write)


def _write_shards(
    client: PSClient,
    replies: Sequence[Message],
    others: Mapping[str, str],
    directory: Path,
) -> dict[str, Any]:
    """Let every server write what it has; return the index of all."""
    control = {"directory": directory.name, "aliases": dict(others)}
    sizes = [
        sum(block.size for block in blocks_of(reply.control["tensors"]))
        for reply in replies
    ]
    answers = client.ask_all(
        Message(Op.WRITE, control=control), more_seconds=max(sizes) / _BYTES_PER_SECOND
    )
    for ps, answer in enumerate(answers):
        if failure := answer.control.get("failure"):
            raise OSError(
                f"The ps at {client.addresses[ps]} could not write: {failure}"
            )
    return index_of([answer.control["record"] for answer in answers])


def restore(
    client: PSClient,
    variables: Variables,
    network: nn.Module,
    optimizers: Sequence[Optimizer],
    path: Path,
) -> None:
    """Let every server read what it will hold from a checkpoint.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    variables : Variables
        Of the network.
    network, optimizers
        As `skest.distributed.ps.variables.options_of` takes them.
    path : Path
        Directory of the checkpoint.
    """
    with reading(path) as files:
        state = files.state
        size = sum((path / name).stat().st_size for name in state["files"])
        mark = checksum(path / STATE)
    described = options_of(variables, network, optimizers, state["scalars"])
    requests = {
        ps: Message(
            Op.RESTORE,
            control={
                "directory": path.name,
                "checksum": mark,
                "variables": variables.to_json(),
                "optimizers": of_ps,
                "step": int(state["global_step"]),
            },
        )
        for ps, of_ps in enumerate(described)
    }
    client.begin(requests)(size / _BYTES_PER_SECOND)
    client.commit()


class Gathered(NamedTuple):
    """What all servers hold, of some kinds of variables.

    Parameters
    ----------
    optimizers : list
        `Part.optimizers` of each server.
    values : dict of str to Tensor
        Variables by name.
    slots : dict of str to Tensor
        ``"<optimizer>:<name>/<slot>"``.
    """

    optimizers: list[list[dict[str, Any]]]
    values: dict[str, Tensor]
    slots: dict[str, Tensor]


def gathered(variables: Variables, parts: Iterable[Part[Tensor]]) -> Gathered:
    """Put the parts of all servers together, one after the other.

    Parameters
    ----------
    variables : Variables
        Of the network.
    parts : iterable of Part
        Of all servers, in order. Of an iterator, no part is kept.
    """
    found, coming = Gathered([], {}, {}), iter(parts)
    for ps in range(variables.num_ps):
        _add(found, variables, ps, next(coming))  # a name would keep it beside the next
    return found


def join(
    found: Gathered, local: Checkpoint, other_names: Mapping[str, str]
) -> Checkpoint:
    """Return the checkpoint of a training whose state is in servers.

    Parameters
    ----------
    found : Gathered
        Of the dense variables and tables of all servers.
    local : Checkpoint
        Of the process that writes checkpoints: all else is from there, such as buffers,
        options, and the position in the input.
    other_names : dict of str to str
        What `aliases` returned for the network.
    """
    random = {k: t for k, t in local.optimizer.items() if k.startswith("random:")}
    values = {**local.variables, **found.values}
    values |= {other: values[name] for other, name in other_names.items()}
    return replace(
        local,
        variables=values,
        optimizer={**random, **found.slots},
        scalars=merged_options(local.scalars, found.optimizers),
    )


def _add(found: Gathered, variables: Variables, ps: int, part: Part[Tensor]) -> None:
    by_name = {v.name: v for v in variables.all}
    found.optimizers.append(part.optimizers)
    for key, tensor in part.tensors.items():
        owner, _, rest = key.partition(":")
        if owner == "variable":
            _put(found.values, rest, tensor, by_name[rest], ps, variables.num_ps)
        else:
            variable = by_name[rest.rpartition("/")[0]]
            _put(found.slots, key, tensor, variable, ps, variables.num_ps)


def _put(
    into: dict[str, Tensor],
    key: str,
    tensor: Tensor,
    variable: Variable,
    ps: int,
    num_ps: int,
) -> None:
    n_rows = n_rows_of(variable.shape[0], ps, num_ps) if variable.ps == -1 else -1
    is_cut = variable.ps == -1 and tensor.shape == (n_rows, *variable.shape[1:])
    if num_ps == 1 or not is_cut:
        into[key] = tensor
        return
    whole = into.get(key)
    if ps == 0 or whole is None:
        whole = into[key] = torch.empty(variable.shape, dtype=tensor.dtype)
    rows_of(whole, ps, num_ps).copy_(tensor)
