# SPDX-License-Identifier: Apache-2.0
"""The state of a run, captured and restored."""

import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skest.checkpoints import format as _tensor_files
from skest.checkpoints.checkpoint import Checkpoint, load_variables
from skest.checkpoints.format import read_tensors, write_in_blocks
from skest.checkpoints.store import DirectoryStore
from skest.exceptions import CheckpointMismatchError
from skest.optimizers import make_optimizer


def test_all_differences_are_listed_and_nothing_is_loaded():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    variables = {
        "0.weight": torch.ones(4, 2),
        "0.bias": torch.ones(3),
        "1.weight": torch.ones(1, 3),
        "2.bias": torch.ones(7),
    }
    with pytest.raises(CheckpointMismatchError) as error:
        load_variables(network, variables)
    assert str(error.value).splitlines()[1:4] == [
        "  0.weight: (4, 2) in the checkpoint, (3, 2) in the network",
        "  1.bias: missing in the checkpoint, (1,) in the network",
        "  2.bias: (7,) in the checkpoint, missing in the network",
    ]
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_tied_variables_can_be_saved(tmp_path):
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network[1].weight = network[0].weight
    optimizer = make_optimizer("adam", network.parameters(), 0.1)
    store = DirectoryStore(tmp_path)
    store.save(Checkpoint.capture(network, 3, (optimizer,)))
    fresh = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    store.latest().restore(fresh)
    assert torch.equal(fresh[1].weight, network[0].weight)


@pytest.mark.parametrize("n_optimizers", [1, 3])
def test_another_number_of_optimizers_is_refused(n_optimizers):
    network = nn.Linear(2, 1)
    optimizers = [make_optimizer("sgd", [p]) for p in network.parameters()]
    checkpoint = Checkpoint.capture(network, 3, optimizers)
    given = [make_optimizer("sgd", network.parameters()) for _ in range(n_optimizers)]
    with pytest.raises(
        CheckpointMismatchError, match=rf"holds 2 optimizer.*model has {n_optimizers}"
    ):
        checkpoint.restore(network, given)
    checkpoint.restore(network)  # prediction has none


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES)),
    max_size=4,
)


@given(TENSORS, st.integers(1, 64))
def test_blocks_make_a_file_that_the_library_reads(
    tmp_path_factory, kinds, block_bytes
):
    tensors = {
        name: torch.randint(0, 2, shape).to(dtype)
        for name, (shape, dtype) in kinds.items()
    }
    directory = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tensor_files, "_BLOCK_BYTES", block_bytes)
        found = write_in_blocks(tensors, directory / "blocks")
    blocks = {
        name: [block for _, block in _tensor_files.blocks(t, block_bytes)]
        for name, t in tensors.items()
    }
    content = (directory / "blocks").read_bytes()
    assert found == zlib.crc32(content)
    written = read_tensors(directory / "blocks")
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert written[name].dtype == tensor.dtype
        assert torch.equal(written[name], tensor)
    for name, some in blocks.items():
        values = [v for block in some for v in block.reshape(-1).tolist()]
        assert values == tensors[name].reshape(-1).tolist()
        assert all(b.nbytes <= block_bytes or len(b) == 1 for b in some)


def test_parts_of_one_buffer_and_what_is_not_in_order(tmp_path):
    buffer = torch.arange(12.0).reshape(3, 4)
    tensors = {"a": buffer.T, "b": buffer[::2], "c": buffer, "d": buffer[0, 3]}
    write_in_blocks(tensors, tmp_path / "x")
    found = read_tensors(tmp_path / "x")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
