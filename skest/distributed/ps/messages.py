# SPDX-License-Identifier: Apache-2.0
"""What messages between workers and parameter servers look like."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Version of all that is said here; both ends must have the same.
PROTOCOL = 3
#: In front of a message there is room for its authentication code.
MAC_BYTES = 32
HEADER_BYTES = 64
#: Largest request, in bytes.
LIMIT = 1 << 28
#: Largest JSON object, in bytes.
MAX_CONTROL = 1 << 24
# Magic, code, bytes of JSON and of tensors, global step, number, place in the session,
# 0. Nothing is pickled: who knows the secret may spoil weights, but runs no code.
_HEADER = struct.Struct("<8q")
_MAGIC = 0x736B657374  # "skest"
# What comes is viewed where it lies, for which torch asks that it is aligned.
_ALIGNMENT = 8


class Op(IntEnum):
    """What a worker asks for."""

    # A part of the protocol, as in `Status`: what is new goes behind.
    HELLO = 0
    INFO = 1
    INIT = 2
    PUT = 3
    COMMIT = 4
    PULL = 5
    PUSH = 6
    SNAPSHOT = 7
    FETCH = 8
    STATS = 9
    STOP = 10
    BYE = 11
    SHUTDOWN = 12


class Status(IntEnum):
    """What became of it."""

    OK = 0
    REFUSED = 1


class WireError(ValueError):
    """A message that is not what the protocol allows."""


class Message(NamedTuple):
    """A request or a reply.

    Parameters
    ----------
    code : int
        An `Op` in a request, a `Status` in a reply.
    step : int
        Global step.
    number : int
        Of a pull, whether dense variables are wanted: 0 or 1; its reply has the number
        of updates made so far, which a push brings back; the reply to that has the
        staleness.
    control : dict
        JSON.
    payload : sequence of Tensor
        On the CPU; in a message that was received, one of bytes.
    """

    code: int
    step: int = 0
    number: int = 0
    control: Mapping[str, Any] = {}
    payload: Sequence[Tensor] = ()


def pack(
    message: Message, sequence: int = 0, limit: int = LIMIT, out: Tensor | None = None
) -> Tensor:
    """Return a message as bytes, behind `MAC_BYTES` that are left as they are.

    Parameters
    ----------
    message : Message
        What to write.
    sequence : int, default=0
        Number of the message in its session.
    limit : int, default=LIMIT
        Largest message that the receiver takes, in bytes.
    out : Tensor of uint8, default=None
        Written into if there is room; what is returned is a part of it then.

    Raises
    ------
    WireError
        If the message is larger than `limit`.
    """
    control = json.dumps(message.control).encode() if message.control else b""
    # Filled up, so that the tensors behind it are aligned.
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
    if out is None or len(out) < MAC_BYTES + size:
        out = torch.empty(MAC_BYTES + size, dtype=torch.uint8)
    content: Any = out.numpy()
    _HEADER.pack_into(
        *(content, MAC_BYTES, _MAGIC, message.code, len(control), n_payload),
        *(message.step, message.number, sequence, 0),
    )
    start = MAC_BYTES + HEADER_BYTES
    memoryview(content)[start : start + len(control)] = control
    start += n_control
    for tensor, n_bytes in zip(message.payload, sizes, strict=True):
        if n_bytes:
            place = out[start : start + n_bytes].view(tensor.dtype)
            place.view_as(tensor).copy_(tensor)
        start += _padded(n_bytes)
    return out[: MAC_BYTES + size]


def size_of(header: Tensor, limit: int) -> int:
    """Return the size in bytes of a message, of which the first part has come.

    Raises
    ------
    WireError
        If it is none, or is larger than `limit`.
    """
    magic, _, n_control, n_payload, *_ = _header_of(header)
    if magic != _MAGIC:
        raise WireError("What came is no message of skest.")
    size = HEADER_BYTES + _padded(n_control) + n_payload
    # Checked before memory is reserved for a message of that size.
    if not 0 <= n_control <= MAX_CONTROL or n_payload < 0 or size > limit:
        raise WireError(
            f"A message announces {n_control} bytes of JSON and {n_payload} of tensors, "
            f"but may have {limit} in all."
        )
    return size


def unpack(buffer: Tensor) -> tuple[Message, int]:
    """Return the message in a buffer of its size, and its number in the session.

    Its payload is a part of the buffer.

    Raises
    ------
    WireError
        If its JSON is none.
    """
    _, code, n_control, n_payload, step, number, sequence, _ = _header_of(buffer)
    control: Any = {}
    if n_control:
        text = buffer[HEADER_BYTES : HEADER_BYTES + n_control].numpy().tobytes()
        try:
            control = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WireError(f"A message has no valid JSON: {error}.") from error
        if not isinstance(control, dict):
            raise WireError("The JSON of a message must be an object.")
    payload = (buffer[len(buffer) - n_payload :],)
    return Message(code, step, number, control, payload), sequence


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


def _header_of(buffer: Tensor) -> tuple[int, ...]:
    content: Any = buffer.numpy()
    return _HEADER.unpack_from(content)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
