# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import STATE, checksum
from skest.checkpoints.store import DirectoryStore
from skest.distributed.ps.checkpoint import read_part, shard_of, write_part
from skest.distributed.ps.variables import Variables, options_of, split

BEING_MADE = ".tmp-" + "0" * 32


def model():
    network = nn.Sequential(nn.Embedding(7, 2, sparse=True), nn.Linear(2, 1))
    optimizer = torch.optim.Adagrad(network.parameters())
    return network, optimizer, Variables.of(network, [optimizer], 2)


def shard(ps=0):
    network, optimizer, variables = model()
    return shard_of(variables, ps, split(variables, network, [optimizer])[ps], {})


def test_what_every_server_has_is_in_the_shard_of_the_first():
    """A number of a table is everywhere, its rows are where they belong."""
    shards = [shard(ps) for ps in range(2)]
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


def test_other_names_of_a_variable_are_written_too():
    network, optimizer, variables = model()
    part = split(variables, network, [optimizer])[0]
    found = shard_of(variables, 0, part, {"other": "0.weight", "none": "not here"})
    assert found.tables.keys() == {"0.weight", "other"}
    assert torch.equal(found.tables["other"], found.tables["0.weight"])


@pytest.mark.parametrize(
    "name",
    [
        "ckpt-3",  # complete: nobody changes it any more
        ".tmp-" + "0" * 31,
        "../" + BEING_MADE,
        f"{BEING_MADE}/../../x",
        f"{BEING_MADE}\n",
        "/etc",
        "..",
        "",
        None,
        3,
    ],
)
def test_a_server_writes_nowhere_else(tmp_path, name):
    inside = tmp_path / "model"
    for path in (inside / BEING_MADE, tmp_path / BEING_MADE, inside / "ckpt-3"):
        path.mkdir(parents=True)
    assert write_part(inside, name, shard()) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_server_does_not_follow_links(tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / BEING_MADE).symlink_to(tmp_path / "else")
    assert write_part(tmp_path, BEING_MADE, shard()) is None


def test_a_server_without_a_directory_writes_nothing(tmp_path):
    (tmp_path / BEING_MADE).mkdir()
    assert write_part(None, BEING_MADE, shard()) is None
    assert write_part(tmp_path / "other", BEING_MADE, shard()) is None
    record = write_part(tmp_path, BEING_MADE, shard())
    assert record is not None
    assert sorted(record["files"]) == sorted(
        path.name for path in (tmp_path / BEING_MADE).iterdir()
    )


@pytest.fixture
def saved(tmp_path):
    """Return the path of a checkpoint, and a function that reads a part of it."""
    network, optimizer, variables = model()
    store = DirectoryStore(tmp_path)
    store.save(Checkpoint.capture(network, 3, [optimizer]))
    path = store.latest_path()
    described = options_of(variables, network, [optimizer], store.latest().scalars)

    own_mark = checksum(path / STATE)

    def read(ps=0, model_dir=tmp_path, name=path.name, mark=own_mark):
        return read_part(model_dir, name, mark, variables, ps, described[ps])

    read.expected = split(variables, network, [optimizer], store.latest())
    return path, read


@pytest.mark.parametrize("ps", [0, 1])
def test_what_is_read_is_what_the_chief_would_send(saved, ps):
    found, expected = saved[1](ps), saved[1].expected[ps]
    assert found.optimizers == expected.optimizers
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor)


def test_another_checkpoint_of_the_same_name_is_not_read(saved):
    path, read = saved
    assert read(mark=1) is None
    assert read(name="ckpt-4") is None
    assert read(model_dir=None) is None
    assert read(model_dir=path.parent / "other") is None


@pytest.mark.parametrize("name", ["../ckpt-3", "ckpt-3/", "ckpt-3/.", ".", None])
def test_a_server_reads_nowhere_else(saved, name):
    assert saved[1](name=name) is None


def test_a_damaged_checkpoint_is_left_to_the_chief(saved):
    path, read = saved
    (path / "variables.safetensors").write_bytes(b"")
    assert read() is None
