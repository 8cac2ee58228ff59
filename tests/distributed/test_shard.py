# SPDX-License-Identifier: Apache-2.0
import gc
import threading

import pytest
import torch
from torch import nn

from skest.distributed.ps.checkpoint import shard_of, write_shard
from skest.distributed.ps.messages import Message, Op, Reader, WireError
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.transfer import (
    Arriving,
    FrozenRows,
    KeptRows,
    block_of,
    blocks_of,
    table_of_contents,
)
from skest.distributed.ps.variables import Variables, split
from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import RowSparse
from tests.distributed._allocated import Allocated
from tests.distributed._training import Counting

N_ROWS, WIDTH = 200_000, 16
TABLE_BYTES = N_ROWS * WIDTH * 4
LOCK = threading.RLock()

OPTIMIZERS = {
    "adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "rows of adagrad": lambda p: RowSparse(torch.optim.Adagrad(p)),
    "rows of adam": lambda p: RowSparse(torch.optim.Adam(p)),
    "rows of ftrl": lambda p: RowSparse(Ftrl(p)),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
}


def described(make):
    network = nn.Embedding(N_ROWS, WIDTH, sparse=True)
    optimizer = OPTIMIZERS[make](network.parameters())
    variables = Variables.of(network, [optimizer], 1)
    return variables, split(variables, network, [optimizer])[0]


def made(make):
    variables, part = described(make)
    contents = table_of_contents(part)
    arriving = Arriving(contents, part.optimizers)
    for block in blocks_of(contents):
        arriving.put(block._asdict(), block_of(part, block._asdict()))
    return variables, part, Shard(variables, 0, arriving.complete())


def push(shard, *ids):
    ids = torch.tensor(ids)
    values = torch.ones(len(ids), WIDTH)
    nothing = torch.zeros(0, dtype=torch.uint8)
    parts = [nothing, nothing, torch.tensor([len(ids)]), ids, values]
    flat = torch.cat([p.reshape(-1).view(torch.uint8) for p in parts])
    shard.update(shard.gradients(Reader(Message(Op.PUSH, payload=(flat,)))))


def values(frozen):
    return {
        k: t[:] if isinstance(t, FrozenRows) else t.to_dense().clone()
        for k, t in frozen.tensors.items()
    }


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_arrives_is_not_copied(make):
    """So that a server needs the memory of what it has, and not of more, to begin."""
    variables, part = described(make)
    with Allocated() as allocated:
        shard = Shard(variables, 0, part)
    assert allocated.n_bytes < TABLE_BYTES / 100
    parameter = shard._parameters["weight"]
    assert parameter.data_ptr() == part.tensors["variable:weight"].data_ptr()
    push(shard, 3)
    assert shard.pull(ids_of(3), False)[0].shape == (1, WIDTH)


def ids_of(*ids):
    flat = torch.cat([torch.tensor([len(ids)]), torch.tensor(ids)]).view(torch.uint8)
    return Reader(Message(Op.PULL, payload=(flat,)))


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ([-7], r"names \[-7\] rows of tables, of which parameter server 0 has"),
        ([N_ROWS + 1, *[0] * (N_ROWS + 1)], r"has \[200000\]; each may be named once"),
        ([2, 1, N_ROWS], r"server 0 does not have, of 'weight' \(it has 200000\)"),
        ([2, -1, 5], r"server 0 does not have, of 'weight' \(it has 200000\)"),
    ],
)
def test_rows_that_a_server_does_not_have_are_refused(numbers, match):
    _, _, shard = made("adagrad")
    flat = torch.tensor(numbers).view(torch.uint8)
    with pytest.raises(WireError, match=match):
        shard.pull(Reader(Message(Op.PULL, payload=(flat,))), False)


def test_of_several_tables_the_one_is_named_whose_rows_are_refused():
    network = nn.ModuleDict({n: nn.Embedding(4, 2, sparse=True) for n in "ab"})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    variables = Variables.of(network, [optimizer], 1)
    shard = Shard(variables, 0, split(variables, network, [optimizer])[0])
    before = [p.detach().clone() for p in network.parameters()]
    nothing = torch.zeros(0, dtype=torch.uint8)
    parts = [nothing, nothing, torch.tensor([1, 1]), torch.tensor([3, 4])]
    flat = torch.cat([p.view(torch.uint8) for p in [*parts, torch.ones(4)]])
    with pytest.raises(WireError, match=r"not have, of 'b.weight' \(it has 4\)\."):
        shard.gradients(Reader(Message(Op.PUSH, payload=(flat,))))
    assert all(map(torch.equal, network.parameters(), before))


def test_an_update_that_fails_leaves_nothing_to_the_next_one(monkeypatch):
    network = Counting()
    optimizer = torch.optim.Adagrad(network.parameters())
    variables = Variables.of(network, [optimizer], 1)
    shard = Shard(variables, 0, split(variables, network, [optimizer])[0])
    kept = shard.frozen(["table"], LOCK)
    rows = torch.sparse_coo_tensor([[3]], torch.ones(1, 2), (7, 2), is_coalesced=True)

    def fails(kept, ids):
        raise MemoryError("no room for rows")

    with monkeypatch.context() as patch:
        patch.setattr(KeptRows, "keep", fails)
        with pytest.raises(MemoryError, match="no room for rows"):
            shard.update({"dense": torch.ones(3), "table.weight": rows})
    shard.update({"table.weight": rows})
    found = values(shard.frozen(["dense", "table"], LOCK))
    assert found["variable:dense"].tolist() == [0.0] * 3
    assert found["variable:table.weight"].any(dim=1).tolist() == [
        n == 3 for n in range(7)
    ]
    assert not values(kept)["variable:table.weight"].any()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_to_begin_takes_the_memory_of_what_arrives(make):
    with Allocated() as allocated:
        _, part, _ = made(make)
    beside = allocated.peak - 2 * sum(t.nbytes for t in part.tensors.values())
    assert beside < 6 * 2**24


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_snapshot_is_of_its_moment(make):
    """Bit for bit, whatever the rule changes beside the rows of a gradient."""
    _, _, shard = made(make)
    push(shard, 1, 2)
    first = shard.frozen(["dense", "table"], LOCK)
    expected = values(shard.frozen(["dense", "table"], LOCK))
    push(shard, 2, 3)
    second = shard.frozen(["dense", "table"], LOCK)
    later = values(second)
    push(shard, 5)
    for frozen, wanted in ((first, expected), (second, later)):
        found = values(frozen)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    key = "variable:weight"
    assert not torch.equal(expected[key], later[key])


@pytest.mark.parametrize(
    "make", [m for m in OPTIMIZERS if m not in ("momentum", "sgd")]
)
def test_to_write_a_snapshot_takes_the_memory_of_blocks(make, tmp_path):
    variables, _, shard = made(make)
    push(shard, 1, 2)
    with Allocated() as allocated:
        frozen = shard.frozen(["dense", "table"], LOCK)
        push(shard, 2, 3)
        before = allocated.n_bytes
        write_shard(tmp_path, shard_of(variables, 0, frozen, {}))
    assert before < TABLE_BYTES / 100
    assert allocated.peak < 3 * 2**24
    n_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert n_bytes > TABLE_BYTES


def test_rows_are_kept_as_long_as_somebody_wants_them():
    _, _, shard = made("adagrad")
    frozen = shard.frozen(["table"], LOCK)
    assert len(shard._kept["weight"]) == 1
    del frozen
    gc.collect()
    assert len(shard._kept["weight"]) == 0


def test_constants_are_not_copied():
    network = nn.Linear(2, 2)
    network.weight.requires_grad_(False)
    optimizer = torch.optim.SGD([network.bias], lr=0.1)
    variables = Variables.of(network, [optimizer], 1)
    shard = Shard(variables, 0, split(variables, network, [optimizer])[0])
    frozen = shard.frozen(["constant"], LOCK)
    assert list(frozen.tensors) == ["variable:weight"]
    assert frozen.tensors["variable:weight"].data_ptr() == network.weight.data_ptr()
