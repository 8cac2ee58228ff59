# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of what is in parameter servers, and those that they wrote before."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.checkpoints.format import STATE, checksum, crc32_of, read_checkpoint
from skest.distributed.ps import checkpoint as transfer
from skest.distributed.ps.optimizers import Shard
from skest.exceptions import CorruptCheckpointError, NanLossDuringTrainingError
from skest.optimizers import make_optimizers
from tests.distributed.test_exactness import assert_same, ids_fn, squared_error


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
        loss=squared_error,
        optimizer=make_optimizers([("table*", "adagrad"), ("*", "adam")], named, 0.05),
    )


def train(model_dir, steps=4, hooks=()):
    config = RunConfig(random_seed=3, model_dir=model_dir)
    estimator = Estimator(tied_model, config=config)
    return estimator.train(ids_fn, steps=steps, hooks=list(hooks)).checkpoint


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let tables travel in several blocks."""
    monkeypatch.setattr(transfer, "_BLOCK_BYTES", 100)


@pytest.mark.parametrize("num_ps", [0, 1, 3])
def test_others_go_on_from_it(served, tmp_path, num_ps):
    """Two servers trained it; others, of another number or none, go on."""
    expected = [train(tmp_path / "local"), train(tmp_path / "local")]
    ours = tmp_path / "ours"
    assert_same(served(2, lambda: train(ours)), expected[0])
    assert_same(served(num_ps, lambda: train(ours)), expected[1])


def test_a_checkpoint_in_memory_is_gathered(served):
    assert_same(served(2, lambda: train(None)), train(None))


def test_variables_that_are_nan_in_a_server_are_not_saved(
    served, tmp_path, monkeypatch
):
    state = Shard.state

    def poisoned(shard, kinds):
        part = state(shard, kinds)
        table = shard._parameters["table.weight"].detach()
        if shard.ps == 1 and shard._optimizers[0].state:
            table[-1] = torch.nan
        return part

    monkeypatch.setattr(Shard, "state", poisoned)
    with pytest.raises(NanLossDuringTrainingError, match="'table.weight' is NaN"):
        served(2, lambda: train(tmp_path))
    assert [path.name for path in tmp_path.glob("*ckpt-*")] in ([], ["ckpt-0"])


# Checkpoints of earlier versions, of which each server wrote a part


def write_in_shards(path, checkpoint, n):
    """Write a checkpoint as n servers did."""
    shards, files = {"n_ps": n}, {}
    path.mkdir()
    for kind in ("variables", "optimizer"):
        tensors, names = getattr(checkpoint, kind), [f"{kind}.safetensors"]
        tables = [name for name, t in tensors.items() if t.shape == (40, 3)]
        own = ("steps", "random:")
        dense = [k for k in tensors if k not in tables and not k.startswith(own)]
        alone = {k: t for k, t in tensors.items() if k.startswith(own)}
        save_file(alone, path / names[0])
        for i in range(n):
            names.append(f"{kind}-{i:05d}-of-{n:05d}.safetensors")
            part = {name: tensors[name][i::n].clone() for name in tables}
            part |= {name: tensors[name].clone() for name in dense if i == 0}
            save_file(part, path / names[-1])
        files |= {name: checksum(path / name) for name in names}
        where = {"rows": 40, "dim": [3], "strategy": "mod", "files": names[1:]}
        dense_in = dict.fromkeys(dense, names[1])
        shards[kind] = {"dense": dense_in, "tables": dict.fromkeys(tables, where)}
    state = {
        "format": "skest.sharded_checkpoint/1",
        "global_step": checkpoint.global_step,
        "scalars": checkpoint.scalars,
        "input_position": checkpoint.input_position,
        "files": files,
        "shards": shards,
    }
    (path / STATE).write_text(json.dumps({**state, "crc32": crc32_of(state)}))


@pytest.fixture
def parts(tmp_path):
    """What was trained, and the directory of its checkpoint in three parts."""
    trained = train(tmp_path / "local")
    (tmp_path / "ours").mkdir()
    write_in_shards(tmp_path / "ours" / "ckpt-4", trained, 3)
    return trained, tmp_path / "ours" / "ckpt-4"


@pytest.mark.parametrize("num_ps", [0, 2])
def test_parts_of_servers_are_read_as_any_other(parts, served, num_ps):
    trained, path = parts
    assert_same(read_checkpoint(path), trained)
    expected = train(path.parents[1] / "local")
    assert_same(served(num_ps, lambda: train(path.parent)), expected)


@pytest.mark.parametrize("damage", ["missing", "flipped", "rows"])
def test_damaged_parts_are_refused(parts, damage):
    path = parts[1]
    part, match = path / "variables-00001-of-00003.safetensors", "is damaged: .*No such"
    content = part.read_bytes()
    if damage == "missing":
        part.unlink()
    elif damage == "flipped":
        match = f"{part.name} has the checksum"
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        match = "shard 0 of 3 of a table of 5 rows"
        state = json.loads((path / STATE).read_text())
        del state["crc32"]
        state["shards"]["variables"]["tables"]["table.weight"]["rows"] = 5
        (path / STATE).write_text(json.dumps({**state, "crc32": crc32_of(state)}))
    with pytest.raises(CorruptCheckpointError, match=match):
        read_checkpoint(path)
