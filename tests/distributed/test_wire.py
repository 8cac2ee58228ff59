# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skest.distributed.ps.messages import (
    MAX_CONTROL,
    Message,
    Op,
    Reader,
    WireError,
    dtype_named,
    name_of_dtype,
    pack,
    size_of,
    unpack,
)

LIMIT = 1 << 20
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(
    st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=4),
    st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False)),
)
def test_what_is_packed_comes_out_again(tensors, control):
    payload = [torch.ones(shape, dtype=dtype) for shape, dtype in tensors]
    numbers = {"generation": 3, "step": 1 << 40, "number": 5, "room": 6}
    packed = pack(Message(Op.PUSH, **numbers, control=control, payload=payload), LIMIT)
    assert size_of(packed) == len(packed)
    found = unpack(torch.cat([packed, torch.zeros(99, dtype=torch.uint8)]))
    assert found.code == Op.PUSH
    assert found.control == control
    assert {name: getattr(found, name) for name in numbers} == numbers
    reader = Reader(found)
    for tensor in payload:
        taken = reader.take(tensor.shape, tensor.dtype)
        assert taken.dtype == tensor.dtype
        assert torch.equal(taken, tensor)


def test_a_buffer_is_used_again_if_there_is_room():
    buffer = torch.empty(1000, dtype=torch.uint8)
    packed = pack(Message(Op.PULL), LIMIT, buffer)
    assert packed.data_ptr() == buffer.data_ptr()
    large = pack(Message(Op.PULL, payload=[torch.zeros(2000)]), LIMIT, buffer)
    assert large.data_ptr() != buffer.data_ptr()


@pytest.mark.parametrize(
    "message",
    [
        Message(Op.PUT, payload=[torch.zeros(LIMIT, dtype=torch.uint8)]),
        Message(Op.INIT, control={"a": "a" * LIMIT}),
    ],
)
def test_too_large_a_message_is_not_packed(message):
    with pytest.raises(WireError, match=r"other side takes: 1,048,576 .* more para"):
        pack(message, LIMIT)


def test_too_large_a_json_object_is_not_packed():
    with pytest.raises(WireError, match="16,777,216 of JSON"):
        pack(Message(Op.INIT, control={"a": "a" * MAX_CONTROL}), MAX_CONTROL * 2)


def broken(place, value, text=b""):
    packed = pack(Message(Op.PULL, control={"a": 1}), LIMIT)
    packed[:64].view(torch.int64)[place] = value
    if text:
        packed[64 : 64 + len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    return packed


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (broken(0, 7), "no message of skest"),
        (broken(2, -1), "announces -1 bytes of JSON"),
        (broken(2, MAX_CONTROL + 1), "bytes of JSON"),
        (broken(3, 1 << 62), "but may have 72 in all"),
        (broken(3, -8), "-8 of tensors"),
        (broken(0, 0x736B657374, b"{{"), "no valid JSON"),
        (broken(0, 0x736B657374, b"[1,2] "), "must be an object"),
    ],
)
def test_a_broken_message_is_refused(message, match):
    if match == "must be an object":
        message[:64].view(torch.int64)[2] = 5
    with pytest.raises(WireError, match=match):
        unpack(message)


@pytest.mark.parametrize("shape", [(3,), (-1,), (1 << 40, 1 << 10)])
def test_a_payload_that_ends_early_is_refused(shape):
    found = unpack(pack(Message(Op.PULL, payload=[torch.zeros(2)]), LIMIT))
    with pytest.raises(WireError, match="too few for one of shape"):
        Reader(found).take(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_have_names(dtype):
    assert dtype_named(name_of_dtype(dtype)) is dtype


@pytest.mark.parametrize("name", ["object", "nn", 3, None])
def test_other_types_are_refused(name):
    with pytest.raises(WireError, match="can't be sent"):
        dtype_named(name)
