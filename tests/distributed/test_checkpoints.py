# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that parameter servers write and read in parts."""

import json
import tempfile
from contextvars import ContextVar
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import (
    STATE,
    ShardedCheckpoint,
    checksum,
    read_checkpoint,
    write_checkpoint,
)
from skest.checkpoints.store import DirectoryStore, MemoryStore
from skest.distributed.ps.checkpoint import (
    Shard,
    index_of,
    read_part,
    read_shard,
    shard_of,
    write_part,
    write_shard,
)
from skest.distributed.ps.client import PSClient
from skest.distributed.ps.connection import RefusedError
from skest.distributed.ps.server import ParameterServer
from skest.distributed.ps.variables import Variables, options_of, split
from skest.distributed.testing import LocalServers
from skest.exceptions import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    NanLossDuringTrainingError,
)
from skest.optimizers import make_optimizers
from tests.distributed import test_exactness as exactness
from tests.distributed._training import replica

SCALARS = {"optimizers": [{"class": "Adam"}], "lr_schedulers": []}
N_PS = st.integers(1, 4)


def checkpoint_of(step=3, n_rows=7, dim=2, value=None):
    """A checkpoint of a table with slots, two dense variables, a buffer and a state."""
    count = torch.arange(1, 1 + n_rows * dim, dtype=torch.float32).reshape(n_rows, dim)
    table = count if value is None else torch.full_like(count, value)
    return Checkpoint(
        step,
        {
            "table": table,
            "weight": torch.arange(6.0).reshape(2, 3),
            "bias": torch.ones(2, dtype=torch.float64),
            "norm.running_mean": torch.full((2,), 0.5),
        },
        {
            "0:table/exp_avg": table / 2,
            "0:table/step": torch.tensor(3.0),
            "0:weight/exp_avg": torch.ones(2, 3),
            "0:weight/step": torch.tensor(3.0),
            "random:generator": torch.arange(5, dtype=torch.uint8),
        },
        SCALARS,
        {"input": "ArrayDataset", "batches": 3, "seeds": []},
    )


OWN = ("norm.running_mean", "random:generator")


def shards_of(checkpoint, n_ps):
    """Cut a checkpoint as parameter servers would have it; server 0 has all dense."""
    variables, slots = checkpoint.variables, checkpoint.optimizer
    tables, table_slots = ["table"], ["0:table/exp_avg"]
    return [
        Shard(
            i,
            n_ps,
            {n: v for n, v in variables.items() if n not in (*tables, *OWN) and i == 0},
            {n: variables[n][i::n_ps] for n in tables},
            {
                n: v
                for n, v in slots.items()
                if n not in (*table_slots, *OWN) and i == 0
            },
            {n: slots[n][i::n_ps] for n in table_slots},
        )
        for i in range(n_ps)
    ]


def sharded(checkpoint, shards):
    own = Checkpoint(
        checkpoint.global_step,
        {n: v for n, v in checkpoint.variables.items() if n in OWN},
        {n: v for n, v in checkpoint.optimizer.items() if n in OWN},
        checkpoint.scalars,
        checkpoint.input_position,
    )

    def write_shards(directory):
        return index_of([write_shard(directory, s) for s in reversed(shards)])

    return ShardedCheckpoint(own, write_shards)


def saved(model_dir, n_ps, checkpoint=None):
    checkpoint = checkpoint or checkpoint_of()
    shards = shards_of(checkpoint, n_ps)
    DirectoryStore(model_dir).save(sharded(checkpoint, shards))
    return model_dir / f"ckpt-{checkpoint.global_step}"


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def assert_same_checkpoint(found, expected):
    assert found.global_step == expected.global_step
    assert_same(found.variables, expected.variables)
    assert_same(found.optimizer, expected.optimizer)
    assert found.scalars == expected.scalars
    assert found.input_position == expected.input_position


@pytest.mark.parametrize("n_ps", [1, 3, 9])
def test_one_process_reads_it_as_any_other(tmp_path, n_ps):
    saved(tmp_path, n_ps)
    store = DirectoryStore(tmp_path)
    assert_same_checkpoint(store.latest(), checkpoint_of())
    assert store.latest_step() == 3


def test_layout(tmp_path):
    path = saved(tmp_path, 2)
    assert sorted(p.name for p in path.iterdir()) == [
        "optimizer-00000-of-00002.safetensors",
        "optimizer-00001-of-00002.safetensors",
        "optimizer.safetensors",
        "state.json",
        "variables-00000-of-00002.safetensors",
        "variables-00001-of-00002.safetensors",
        "variables.safetensors",
    ]
    shards = json.loads((path / "state.json").read_text())["shards"]
    assert shards["n_ps"] == 2
    assert shards["variables"]["tables"]["table"] == {
        "rows": 7,
        "dim": [2],
        "strategy": "mod",
        "files": [f"variables-0000{i}-of-00002.safetensors" for i in range(2)],
    }


@settings(max_examples=25, deadline=None)
@given(n=N_PS, m=N_PS, n_rows=st.integers(1, 12))
def test_servers_of_another_number_go_on(n, m, n_rows):
    expected = checkpoint_of(n_rows=n_rows)
    names = {"dense": ["weight", "bias"], "tables": ["table"]}
    with tempfile.TemporaryDirectory() as folder:
        first = saved(Path(folder, "n"), n, expected)
        shards = [read_shard(first, i, m, **names) for i in range(m)]
        for i, shard in enumerate(shards):
            assert_same(shard.tables, {"table": expected.variables["table"][i::m]})
            slots = {"0:table/exp_avg": expected.optimizer["0:table/exp_avg"][i::m]}
            assert_same(shard.table_slots, slots)
        once = [
            shards[0],
            *(Shard(s.index, m, {}, s.tables, {}, s.table_slots) for s in shards[1:]),
        ]
        store = DirectoryStore(Path(folder, "m"))
        store.save(sharded(expected, once))
        assert_same_checkpoint(store.latest(), expected)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_servers_go_on_from_an_ordinary_checkpoint(tmp_path, m):
    expected = checkpoint_of()
    write_checkpoint(expected, tmp_path)
    for i, wanted in enumerate(shards_of(expected, m)):
        found = read_shard(tmp_path, i, m, dense=wanted.dense, tables=["table"])
        assert_same(found.dense, wanted.dense)
        assert_same(found.tables, wanted.tables)
        assert_same(found.table_slots, wanted.table_slots)
        step = {"0:table/step": torch.tensor(3.0)}  # belongs to the table everywhere
        assert_same(found.slots, {**wanted.slots, **step})


def test_a_server_reads_no_files_of_others(tmp_path):
    path = saved(tmp_path, 2)
    (path / "variables-00000-of-00002.safetensors").unlink()
    shard = read_shard(path, 1, 2, tables=["table"])
    assert torch.equal(shard.tables["table"], checkpoint_of().variables["table"][1::2])


def test_what_was_read_can_be_changed(tmp_path):
    path = saved(tmp_path, 2)
    for n in (2, 3):
        shard = read_shard(path, 0, n, dense=["weight"], tables=["table"])
        for tensors in (shard.dense, shard.tables, shard.slots, shard.table_slots):
            for value in tensors.values():
                value.zero_()
    assert_same_checkpoint(read_checkpoint(path), checkpoint_of())


def test_dense_variables_may_be_views_of_one_buffer(tmp_path):
    buffer = torch.arange(6.0)
    shards = [Shard(0, 1, {"a": buffer[:2], "b": buffer[2:]}, {}, {}, {})]
    DirectoryStore(tmp_path).save(sharded(Checkpoint(1, {}), shards))
    found = DirectoryStore(tmp_path).latest().variables
    assert_same(found, {"a": buffer[:2], "b": buffer[2:]})


# Wrong shards


def record_of(directory, *args, **kwargs):
    return write_shard(directory, Shard(*args, **kwargs))


def test_all_shards_are_needed_once(tmp_path):
    first = record_of(tmp_path, 0, 2)
    for records, listed in [([first], "0 of 2"), ([first, first], "0 of 2, 0 of 2")]:
        with pytest.raises(ValueError, match=f"once each; got {listed}"):
            index_of(records)
    with pytest.raises(ValueError, match="got none"):
        index_of([])


def test_a_dense_variable_is_in_one_shard(tmp_path):
    dense = {"weight": torch.ones(2)}
    records = [record_of(tmp_path, i, 2, dense) for i in range(2)]
    with pytest.raises(ValueError, match="'weight' is in variables-00000.* must be in"):
        index_of(records)


@pytest.mark.parametrize(
    "shapes",
    [((3, 2), (3, 2), (3, 2)), ((3, 2), (2, 3), (2, 2)), ((1, 2), (3, 2), (3, 2))],
)
def test_shards_of_a_table_have_its_rows(tmp_path, shapes):
    records = [
        record_of(tmp_path, i, 3, tables={"table": torch.ones(shape)})
        for i, shape in enumerate(shapes)
    ]
    if len(set(shapes)) == 1:  # nine rows
        assert index_of(records)["variables"]["tables"]["table"]["rows"] == 9
        return
    with pytest.raises(ValueError, match="parts of the table 'table' don't fit"):
        index_of(records)


def test_a_table_is_in_all_shards(tmp_path):
    table = {"table": torch.ones(2, 2)}
    records = [record_of(tmp_path, 0, 2, tables=table), record_of(tmp_path, 1, 2)]
    with pytest.raises(ValueError, match="don't fit together"):
        index_of(records)


def test_what_the_chief_has_is_in_no_shard(tmp_path):
    shards = [Shard(0, 1, {"norm.running_mean": torch.ones(2)})]
    with pytest.raises(ValueError, match="'norm.running_mean' are in a shard, and in"):
        DirectoryStore(tmp_path).save(sharded(checkpoint_of(), shards))
    assert DirectoryStore(tmp_path).latest() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("index", "n_ps"), [(2, 2), (-1, 2), (0, 0)])
def test_the_number_of_a_shard(index, n_ps):
    with pytest.raises(ValueError, match=f"for 'n_ps'={n_ps}; got {index}"):
        Shard(index, n_ps)


def test_variables_that_are_not_there(tmp_path):
    path = saved(tmp_path, 2)
    with pytest.raises(CheckpointMismatchError, match="lacks the variables 'a', 'b'"):
        read_shard(path, 0, 2, dense=["b", "weight"], tables=["a"])


def test_variables_that_are_nan_are_not_saved(tmp_path):
    shards = shards_of(checkpoint_of(value=float("nan")), 2)
    with pytest.raises(NanLossDuringTrainingError, match="variables 'table' are NaN"):
        DirectoryStore(tmp_path).save(sharded(checkpoint_of(), shards))
    assert list(tmp_path.iterdir()) == []


def test_it_is_not_kept_in_memory():
    with pytest.raises(TypeError, match="set 'model_dir'"):
        MemoryStore().save(sharded(checkpoint_of(), []))


# Damage

SHARD = "variables-00001-of-00002.safetensors"


def damaged(path, name, damage):
    content = (path / name).read_bytes()
    if damage == "missing":
        (path / name).unlink()
    elif damage == "truncated":
        (path / name).write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        (path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        (path / name).write_bytes(b"")


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "empty"])
def test_damaged_shards_are_refused(tmp_path, damage):
    path, name = saved(tmp_path, 2), SHARD
    damaged(path, name, damage)
    match = "is damaged: .*No such file" if damage == "missing" else f"{name} has the"
    with pytest.raises(CorruptCheckpointError, match=match):
        read_checkpoint(path)
    with pytest.raises(CorruptCheckpointError, match=match):
        read_shard(path, 0, 3, tables=["table"])


@pytest.mark.parametrize("rows", [5, "x", None])
def test_an_index_with_wrong_rows_is_refused(tmp_path, rows):
    shards = shards_of(checkpoint_of(), 2)
    checkpoint = sharded(checkpoint_of(), shards)
    write_shards = checkpoint.write_shards

    def lying(directory):
        index = write_shards(directory)
        index["variables"]["tables"]["table"]["rows"] = rows
        return index

    DirectoryStore(tmp_path).save(ShardedCheckpoint(checkpoint.own, lying))
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        read_checkpoint(tmp_path / "ckpt-3")
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        read_shard(tmp_path / "ckpt-3", 1, 2, tables=["table"])


# A training with servers


class Tied(nn.Module):
    """A table, a dense variable of two names, and a buffer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 3, sparse=True)
        self.out = nn.Linear(3, 1)
        self.same = self.out
        self.also = self.table
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, features):
        self.steps += 1
        return self.out(self.table(features["ids"]))


def tied_model(features, labels, mode):
    network = Tied()
    network.table.weight.is_row_table = True
    named = dict(network.named_parameters())
    return EstimatorSpec(
        mode,
        network=network,
        loss=exactness.squared_error,
        optimizer=make_optimizers([("table*", "adagrad"), ("*", "adam")], named, 0.05),
    )


@pytest.fixture
def train(monkeypatch):
    """Return ``train(model_dir, addresses)``; without addresses it is local."""

    def run(model_dir, addresses=None):
        config = RunConfig(random_seed=3, model_dir=model_dir)
        estimator = Estimator(tied_model, config=config)
        with monkeypatch.context() as patch:
            if addresses:
                make = replica(addresses)
                patch.setattr(
                    "skest.estimators.estimator.LONE",
                    ContextVar("test", default=lambda: make),
                )
            return estimator.train(exactness.ids_fn, steps=4).checkpoint

    return run


@pytest.mark.parametrize("num_ps", [0, 3])
def test_others_go_on_from_it(train, tmp_path, monkeypatch, num_ps):
    """Two servers write it; others, of another number or none, read it."""
    expected = [train(tmp_path / "local"), train(tmp_path / "local")]
    ours = tmp_path / "ours"
    with LocalServers(2, model_dir=ours) as servers:
        exactness.assert_same(train(ours, servers.addresses), expected[0])
    state = json.loads((ours / "ckpt-4" / STATE).read_bytes())
    assert state["shards"]["n_ps"] == 2
    tables = state["shards"]["variables"]["tables"]
    assert tables.keys() == {"table.weight", "also.weight"}
    if num_ps == 0:
        exactness.assert_same(train(ours), expected[1])
        return
    monkeypatch.setattr(PSClient, "initialize", None)  # they read it themselves
    with LocalServers(num_ps, model_dir=ours) as servers:
        exactness.assert_same(train(ours, servers.addresses), expected[1])


def test_a_checkpoint_in_memory_is_gathered(train):
    with LocalServers(2) as servers:
        exactness.assert_same(train(None, servers.addresses), train(None))


def test_servers_that_do_not_see_the_directory_are_named(train, tmp_path):
    with LocalServers(2, model_dir=tmp_path / "ours") as servers:
        servers.servers[1]._model_dir = tmp_path / "other"
        expected = f"{servers.addresses[1]} could not write: There is no .* see the"
        with pytest.raises(OSError, match=expected):
            train(tmp_path / "ours", servers.addresses)
    train(tmp_path / "ours")
    with LocalServers(1) as servers:
        with pytest.raises(RefusedError, match="OSError: There is no 'model_dir' here"):
            train(tmp_path / "ours", servers.addresses)


def test_variables_that_are_nan_in_a_server_are_not_saved(train, tmp_path, monkeypatch):
    ours, write = tmp_path / "ours", ParameterServer.write

    def poisoned(self, control, part):
        if self.step == 4:
            values = part.tensors["variable:table.weight"][:]
            values[0] = torch.nan
            spoilt = {**part.tensors, "variable:table.weight": values}
            part = part._replace(tensors=spoilt)
        return write(self, control, part)

    monkeypatch.setattr(ParameterServer, "write", poisoned)
    with (
        LocalServers(2, model_dir=ours) as servers,
        pytest.raises(NanLossDuringTrainingError, match="'table.weight'"),
    ):
        train(ours, servers.addresses)
    assert [path.name for path in ours.glob("*ckpt-*")] == ["ckpt-0"]


# What a server may write and read

BEING_MADE = ".tmp-" + "0" * 32


def model():
    network = nn.Sequential(nn.Embedding(7, 2, sparse=True), nn.Linear(2, 1))
    optimizer = torch.optim.Adagrad(network.parameters())
    return network, optimizer, Variables.of(network, [optimizer], 2)


def own_shard(ps=0):
    network, optimizer, variables = model()
    return shard_of(variables, ps, split(variables, network, [optimizer])[ps], {})


def test_what_every_server_has_is_in_the_shard_of_the_first():
    """A number of a table is everywhere, its rows are where they belong."""
    shards = [own_shard(ps) for ps in range(2)]
    assert [list(s.tables) for s in shards] == [["0.weight"]] * 2
    assert [len(s.tables["0.weight"]) for s in shards] == [4, 3]
    assert [list(s.table_slots) for s in shards] == [["0:0.weight/sum"]] * 2
    dense = [name for s in shards for name in s.dense]
    assert sorted(dense) == ["1.bias", "1.weight"]
    slots = sorted(name for s in shards for name in s.slots)
    assert slots == ["0:0.weight/step"] + [
        f"0:1.{name}/{slot}" for name in ("bias", "weight") for slot in ("step", "sum")
    ]
    assert "0:0.weight/step" in shards[0].slots


@pytest.mark.parametrize(
    "name", ["ckpt-3", f"../{BEING_MADE}", f"{BEING_MADE}/../../x", "/etc", "", None]
)
def test_a_server_writes_and_reads_nowhere_else(tmp_path, name):
    inside = tmp_path / "model"
    for path in (inside / BEING_MADE, tmp_path / BEING_MADE, inside / "ckpt-3"):
        path.mkdir(parents=True)
    with pytest.raises(OSError, match="must see the same 'model_dir'"):
        write_part(inside, name, own_shard())
    _, _, variables = model()
    for place in (f"../{name}", f"{name}/.", f"{name}\n"):
        with pytest.raises(OSError, match="must see the same 'model_dir'"):
            read_part(inside, place, 0, variables, 0, [])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_server_does_not_follow_links(tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / BEING_MADE).symlink_to(tmp_path / "else")
    with pytest.raises(OSError, match="There is no checkpoint"):
        write_part(tmp_path, BEING_MADE, own_shard())


@pytest.mark.parametrize("ps", [0, 1])
def test_what_is_read_is_what_the_chief_would_send(tmp_path, ps):
    network, optimizer, variables = model()
    store = DirectoryStore(tmp_path)
    store.save(Checkpoint.capture(network, 3, [optimizer]))
    path = store.latest_path()
    described = options_of(variables, network, [optimizer], store.latest().scalars)
    known = path.name, checksum(path / STATE), variables, ps, described[ps]
    found = read_part(tmp_path, *known)
    expected = split(variables, network, [optimizer])[ps]
    assert found.optimizers == expected.optimizers
    assert_same(found.tensors, expected.tensors)
    with pytest.raises(OSError, match="is not what the chief sees"):
        read_part(tmp_path, path.name, 1, *known[2:])
