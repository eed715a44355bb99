"""The frames that the processes exchange over TCP: a fixed head, a JSON object, and arrays as raw bytes.

    magic "CP" | version u8 | kind u8 | length of JSON u32 | length of arrays u32 | JSON | arrays, end to end

All numbers are big-endian in the head and little-endian in the arrays. The JSON names each array with its type and
shape. Nothing is ever unpickled, and both lengths have a limit that is checked before a byte of them is read: whoever
reaches the port can at worst send numbers.
"""

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cartpole.faults import WireError

MAGIC = b"CP"
VERSION = 1
HEAD = struct.Struct(">2sBBII")
JSON_LIMIT = 64 * 1024
ARRAYS_LIMIT = 16 * 1024 * 1024  # the largest frame of ours, episodes of a few thousand steps, is below 1 MiB
DTYPES = ("<f8", "<f4", "<i8", "|u1")

Arrays = dict[str, NDArray[np.generic]]


class Kind(IntEnum):
    """What a frame is. The first four go to the learner, each but BYE is answered by one of the others."""

    HELLO = 1  # {role, name}: the first frame of a connection
    FETCH = 2  # {have}: are there weights newer than version `have`?
    EPISODES = 3  # {have, version} + episodes played with the weights `version`
    EVALUATION = 4  # {have, version, solved} + returns, and the weights themselves when they solve the environment
    BYE = 5  # {}: this process is about to exit 0, and will not come back
    WEIGHTS = 6  # {version} + parameters
    SAME = 7  # {version}: nothing newer than what you have
    STOP = 8  # {}: the job is solved
    REFUSED = 9  # {reason}: this connection is of no use, do not try again


@dataclass(frozen=True, slots=True)
class Message:
    """One frame, taken apart."""

    kind: Kind
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def integer(self, name: str) -> int:
        """A whole number among the fields; raises WireError when it is missing or something else."""
        value = self.fields.get(name)
        if type(value) is not int:
            raise WireError(f"{self.kind.name} frame: `{name}` is {value!r}, a whole number was expected")
        return value


def encode(message: Message) -> bytes:
    """The bytes of a frame; raises WireError when it is over a limit."""
    described: list[list[Any]] = []
    parts: list[bytes] = []
    for name, array in message.arrays.items():
        dtype = array.dtype.newbyteorder("<").str
        if dtype not in DTYPES:
            raise WireError(f"array {name} has type {array.dtype}, which the protocol has not")
        described.append([name, dtype, list(array.shape)])
        parts.append(array.astype(dtype, copy=False).tobytes())
    text = json.dumps({"fields": dict(message.fields), "arrays": described}, allow_nan=False).encode()
    size = sum(len(part) for part in parts)
    _check_lengths(len(text), size)
    return HEAD.pack(MAGIC, VERSION, message.kind, len(text), size) + text + b"".join(parts)


def receive(connection: socket.socket) -> Message | None:
    """Read one frame; None when the peer closed the connection between two frames.

    Raises WireError for anything that is not a whole frame, OSError (TimeoutError) as the socket does.
    """
    head = _exactly(connection, HEAD.size, at_edge=True)
    if head is None:
        return None
    return decode(head, lambda size: _exactly(connection, size) or b"")


def decode(head: bytes, read: Callable[[int], bytes]) -> Message:
    """Take a frame apart, given its head and something that reads exactly so many bytes after it."""
    magic, version, kind, text_size, arrays_size = HEAD.unpack(head)
    if magic != MAGIC:
        raise WireError("this is not a frame of the cartpole protocol")
    if version != VERSION:
        raise WireError(f"the peer speaks version {version} of the protocol, this process version {VERSION}")
    if kind not in Kind.__members__.values():
        raise WireError(f"a frame of unknown kind {kind}")
    _check_lengths(text_size, arrays_size)
    fields, described = _parse(read(text_size))
    return Message(Kind(kind), fields, _split(described, read(arrays_size)))


def _check_lengths(text: int, arrays: int) -> None:
    if text > JSON_LIMIT:
        raise WireError(f"a frame with {text} bytes of JSON: the limit is {JSON_LIMIT}")
    if arrays > ARRAYS_LIMIT:
        raise WireError(f"a frame with {arrays} bytes of arrays: the limit is {ARRAYS_LIMIT}")


def _exactly(connection: socket.socket, size: int, *, at_edge: bool = False) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            if at_edge and not parts:
                return None
            raise WireError("the peer closed the connection inside a frame")
        parts += part
    return bytes(parts)


def _parse(text: bytes) -> tuple[dict[str, Any], list[Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("the JSON of a frame cannot be read") from None
    if not isinstance(value, dict):
        raise WireError("the JSON of a frame is not an object")
    fields, described = value.get("fields"), value.get("arrays")
    if not isinstance(fields, dict) or not isinstance(described, list):
        raise WireError("the JSON of a frame lacks its fields or its arrays")
    return fields, described


def _split(described: list[Any], data: bytes) -> Arrays:
    arrays: Arrays = {}
    start = 0
    for entry in described:
        match entry:
            case [str(name), str(dtype), [*shape]] if (
                dtype in DTYPES
                and len(shape) <= 2
                and all(type(size) is int and 0 <= size <= ARRAYS_LIMIT for size in shape)
            ):
                count = math.prod(shape)
            case _:
                raise WireError(f"a frame describes an array as {str(entry)[:80]!r}")
        stop = start + count * np.dtype(dtype).itemsize
        if stop > len(data):
            raise WireError(f"array {name} is longer than its frame")
        arrays[name] = np.frombuffer(data[start:stop], dtype=dtype).reshape(shape)
        start = stop
    if start != len(data):
        raise WireError(f"a frame holds {len(data) - start} bytes more than its arrays")
    return arrays
