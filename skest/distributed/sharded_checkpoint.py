# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that parameter servers write and read in parts.

Every server writes a shard of its own; the index of all becomes a part of the checkpoint,
whose directory is published by one rename. It is read by one process as any other, and
by servers of another number, each the rows that it will have.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from skest._tensor_files import Rows, write_in_blocks
from skest.checkpoint_format import StoredTensor, reading
from skest.exceptions import CheckpointMismatchError, NanLossDuringTrainingError
from skest.table_shards import shard_length

__all__ = ["Shard", "index_of", "read_shard", "write_shard"]

#: Tensors, or what is read in blocks as they are.
AnyRows = TypeVar("AnyRows", bound=Rows)

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
        As ``write_shards`` of `skest.checkpoint_format.ShardedCheckpoint` gets it; all
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
        What ``write_shards`` of `skest.checkpoint_format.ShardedCheckpoint` returns:
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
    >>> from skest.distributed.sharded_checkpoint import Shard, index_of, write_shard
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
        As `skest.checkpoint_format.read_checkpoint`.
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
