# SPDX-License-Identifier: Apache-2.0
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.checkpoints import format as _tensor_files
from skest.checkpoints.format import read_tensors, write_in_blocks

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
