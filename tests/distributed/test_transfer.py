# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.ps import transfer
from skest.distributed.ps.messages import WireError
from skest.distributed.ps.transfer import (
    BLOCK_BYTES,
    Arriving,
    Block,
    as_bytes,
    block_of,
    blocks_of,
    table_of_contents,
)
from skest.distributed.ps.variables import Part
from tests.distributed._allocated import Allocated

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
SHAPES = st.lists(st.integers(0, 5), max_size=3)


def part_of(tensors):
    return Part([{"class": "SGD"}], {str(i): t for i, t in enumerate(tensors)})


@given(
    st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=4),
    st.integers(8, 64),
    st.randoms(),
)
def test_blocks_in_any_order_make_the_same_part(kinds, block_bytes, random):
    part = part_of([torch.randint(0, 2, shape).to(dtype) for shape, dtype in kinds])
    contents = table_of_contents(part)
    arriving = Arriving(contents, part.optimizers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "BLOCK_BYTES", block_bytes)
        blocks = list(blocks_of(contents))
        random.shuffle(blocks)
        assert all(0 < block.size <= block_bytes for block in blocks)
        for block in blocks:
            arriving.put(block._asdict(), block_of(part, block._asdict()))
    found = arriving.complete()
    assert found.optimizers == part.optimizers
    assert found.tensors.keys() == part.tensors.keys()
    for name, tensor in part.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def test_a_large_tensor_travels_in_blocks():
    contents = [["a", "uint8", [BLOCK_BYTES + 5]], ["b", "float32", [0]]]
    expected = [Block(0, 0, BLOCK_BYTES), Block(0, BLOCK_BYTES, 5)]
    assert list(blocks_of(contents)) == expected


def test_a_tensor_that_is_not_contiguous_is_sent_as_it_is_seen():
    tensor = torch.arange(6).reshape(2, 3).T
    (block,) = blocks_of(table_of_contents(part_of([tensor])))
    sent = block_of(part_of([tensor]), block._asdict())
    assert torch.equal(sent, as_bytes(tensor.contiguous()))


def test_a_block_of_a_tensor_that_is_not_contiguous_needs_no_copy_of_all_of_it():
    tensor = torch.arange(4_000_000.0).reshape(-1, 4)[::2]
    with Allocated() as allocated:
        block = block_of(part_of([tensor]), {"tensor": 0, "start": 21, "size": 50})
    assert allocated.n_bytes < 200
    assert torch.equal(block, as_bytes(tensor.contiguous())[21:71])


@pytest.mark.parametrize(
    "contents",
    [
        3,
        [["a", "float32"]],
        [["a", "float32", ["x"]]],
        [["a", "float32", [-1]]],
        [["a", "object", [1]]],
        [["a", "int64", [1 << 60]]],
    ],
)
def test_contents_that_are_not_sound(contents):
    with pytest.raises(WireError):
        Arriving(contents, [])


BYTES = torch.zeros(8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ({}, "has no place"),
        ({"tensor": 0, "start": 0, "size": "8"}, "has no place"),
        ({"tensor": 0, "start": -1, "size": 1}, "has no place"),
        ({"tensor": True, "start": 0, "size": 1}, "has no place"),
        ({"tensor": 1, "start": 0, "size": 8}, "outside of its tensor"),
        ({"tensor": 0, "start": 5, "size": 8}, "outside of its tensor"),
        ({"tensor": 0, "start": 0, "size": 9}, "not complete"),
    ],
)
def test_blocks_that_have_no_place(block, match):
    arriving = Arriving([["a", "uint8", [12]]], [])
    with pytest.raises(WireError, match=match):
        arriving.put(block, BYTES)


@pytest.mark.parametrize(
    "block",
    [
        {"tensor": 1, "start": 0, "size": 1},
        {"tensor": 0, "start": 0, "size": BLOCK_BYTES + 1},
    ],
)
def test_blocks_that_are_not_there(block):
    with pytest.raises(WireError, match="no such block"):
        block_of(part_of([torch.ones(2)]), block)


def test_a_part_of_which_something_is_missing():
    arriving = Arriving([["a", "uint8", [12]]], [])
    arriving.put({"tensor": 0, "start": 0, "size": 8}, BYTES)
    with pytest.raises(WireError, match="4 bytes of the variables did not come"):
        arriving.complete()
