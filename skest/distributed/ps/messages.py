# SPDX-License-Identifier: Apache-2.0
"""What messages between workers and parameter servers look like."""

import json
import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Version of all that is said here; both ends must have the same.
PROTOCOL = 1
HEADER_BYTES = 64
#: Largest JSON object, in bytes.
MAX_CONTROL = 1 << 24
_MAGIC = 0x736B657374  # "skest"
_ALIGNMENT = 8
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}


class Op(IntEnum):
    """What a worker asks for."""

    INFO = 1
    INIT = 2
    PUT = 3
    COMMIT = 4
    PULL = 5
    PUSH = 6
    SNAPSHOT = 7
    FETCH = 8
    STATS = 9
    BYE = 10
    SHUTDOWN = 11
    WRITE = 12
    RESTORE = 13
    STOP = 14
    HELLO = 15


class Pull(IntEnum):
    """For which step the variables are wanted."""

    NOW = 1
    AHEAD = 2


class Status(IntEnum):
    """What became of it."""

    OK = 0
    NOT_READY = 1
    STALE = 2
    REFUSED = 3
    LATER = 4


class WireError(ValueError):
    """A message that is not what the protocol allows."""


class Message(NamedTuple):
    """A request or a reply.

    Parameters
    ----------
    code : int
        An `Op` in a request, a `Status` in a reply.
    generation : int
        Which initialization of the servers it is about; 0 is none.
    step : int
        Global step.
    number : int
        Of a pull, whether dense variables are wanted: 0 or a member of `Pull`; its
        reply has the number of updates made so far, which a push brings back; the reply
        to that has the staleness.
    room : int
        Of a request, the largest reply that there is room for, in bytes.
    control : dict
        JSON.
    payload : sequence of Tensor
        On the CPU; in a message that was received, one of bytes.
    """

    code: int
    generation: int = 0
    step: int = 0
    number: int = 0
    room: int = 0
    control: Mapping[str, Any] = {}
    payload: Sequence[Tensor] = ()


def pack(
    message: Message,
    limit: int,
    out: Tensor | None = None,
    *,
    pin_memory: bool = False,
) -> Tensor:
    """Return a message as bytes.

    Parameters
    ----------
    message : Message
        What to write.
    limit : int
        Largest message that the receiver takes, in bytes.
    out : Tensor of uint8, default=None
        Written into if there is room; what is returned is a part of it then.
    pin_memory : bool, default=False
        Whether tensors come from a GPU, which writes faster into memory that is pinned.

    Raises
    ------
    WireError
        If the message is larger than `limit`.
    """
    control = json.dumps(message.control).encode() if message.control else b""
    n_control = _padded(len(control))
    sizes = [tensor.numel() * tensor.element_size() for tensor in message.payload]
    n_payload = sum(map(_padded, sizes))
    size = HEADER_BYTES + n_control + n_payload
    if size > limit or len(control) > MAX_CONTROL:
        raise WireError(
            f"A message of {size:,} bytes, of which {len(control):,} are JSON, is larger "
            f"than the other side takes: {limit:,} bytes, {MAX_CONTROL:,} of JSON. Use "
            "smaller batches, or more parameter servers, which share dense variables."
        )
    if out is None or len(out) < size:
        out = torch.empty(size, dtype=torch.uint8, pin_memory=pin_memory)
    numbers = (message.generation, message.step, message.number, message.room)
    header = [_MAGIC, int(message.code), len(control), n_payload, *numbers]
    out[:HEADER_BYTES].view(torch.int64).copy_(torch.tensor(header))
    if control:
        text = torch.frombuffer(bytearray(control), dtype=torch.uint8)
        out[HEADER_BYTES : HEADER_BYTES + len(control)] = text
    start = HEADER_BYTES + n_control
    for tensor, n_bytes in zip(message.payload, sizes, strict=True):
        if n_bytes:
            place = out[start : start + n_bytes].view(tensor.dtype)
            place.view_as(tensor).copy_(tensor)
        start += _padded(n_bytes)
    return out[:size]


def unpack(buffer: Tensor) -> Message:
    """Return the message at the beginning of a buffer; its payload is a part of it.

    Raises
    ------
    WireError
        If there is no message, or not all of it.
    """
    magic, code, n_control, n_payload, *numbers = _header_of(buffer)
    if magic != _MAGIC:
        raise WireError("What came is no message of skest.")
    start = HEADER_BYTES + _padded(n_control)
    is_sound = 0 <= n_control <= MAX_CONTROL and n_payload >= 0
    if not is_sound or start + n_payload > len(buffer):
        raise WireError(
            f"A message announces {n_control} bytes of JSON and {n_payload} of tensors, "
            f"but may have {len(buffer)} in all."
        )
    control: Any = {}
    if n_control:
        text = buffer[HEADER_BYTES : HEADER_BYTES + n_control].numpy().tobytes()
        try:
            control = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WireError(f"A message has no valid JSON: {error}.") from error
        if not isinstance(control, dict):
            raise WireError("The JSON of a message must be an object.")
    payload = (buffer[start : start + n_payload],)
    generation, step, number, room = numbers
    return Message(code, generation, step, number, room, control, payload)


def size_of(buffer: Tensor) -> int:
    """Return the size in bytes of the message at the beginning of a buffer."""
    _, _, n_control, n_payload, *_ = _header_of(buffer)
    return HEADER_BYTES + _padded(n_control) + n_payload


class Reader:
    """Takes tensors out of the payload of a message that was received.

    Parameters
    ----------
    message : Message
        As `unpack` returns it.
    """

    def __init__(self, message: Message) -> None:
        self._bytes = message.payload[0]
        self._start = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """Return the next tensor; it is a part of the buffer of the message.

        Raises
        ------
        WireError
            If the payload ends before.
        """
        end = self._start + math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or end > len(self._bytes):
            raise WireError(
                f"A message has {len(self._bytes)} bytes of tensors, too few for one of "
                f"shape {tuple(shape)}."
            )
        # To view as a torch.Size takes three times as long.
        found = self._bytes[self._start : end].view(dtype).view(tuple(shape))
        self._start += _padded(end - self._start)
        return found


def name_of_dtype(dtype: torch.dtype) -> str:
    """Return what a type is called in messages."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: Any) -> torch.dtype:
    """Return the type that `name_of_dtype` names.

    Raises
    ------
    WireError
        If there is none.
    """
    if name not in _DTYPES:
        raise WireError(f"Variables of type {name!r} can't be sent.")
    return _DTYPES[name]


def _header_of(buffer: Tensor) -> list[int]:
    return buffer[:HEADER_BYTES].view(torch.int64).tolist()


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


#: Largest request, in bytes.
LIMIT = 1 << 28
