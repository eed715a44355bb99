"""The wire format of the CartPole example: messages arrive as sent, and anything else is rejected."""

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from cartpole import wire
from cartpole.faults import WireError
from cartpole.wire import HEAD, Kind, Message

NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
FIELDS = st.dictionaries(st.text(max_size=10), st.one_of(NUMBERS, st.text(max_size=20), st.booleans()), max_size=4)
ARRAYS = st.dictionaries(
    st.text(max_size=10),
    st.sampled_from(wire.DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=6))
    ),
    max_size=4,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(60)
        right.settimeout(60)
        yield left, right


def _decode(data: bytes) -> Message:
    rest = [data[HEAD.size :]]

    def read(size: int) -> bytes:
        part, rest[0] = rest[0][:size], rest[0][size:]
        return part

    return wire.decode(data[: HEAD.size], read)


@given(kind=st.sampled_from(Kind), fields=FIELDS, arrays=ARRAYS)
def test_a_frame_comes_out_as_it_went_in(
    kind: Kind, fields: dict[str, object], arrays: dict[str, NDArray[np.generic]]
) -> None:
    out = _decode(wire.encode(Message(kind, fields, arrays)))
    assert (out.kind, out.fields) == (kind, fields)
    assert out.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert out.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(out.arrays[name], array)


@given(data=st.binary(min_size=HEAD.size, max_size=200))
def test_noise_is_refused_with_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(WireError):
        _decode(data)


@pytest.mark.slow
@given(text=st.recursive(NUMBERS | st.text() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_a_strange_description_of_the_arrays_is_refused(text: object) -> None:
    body = json.dumps({"fields": {}, "arrays": [text]}).encode()
    with pytest.raises(WireError):
        _decode(HEAD.pack(b"CP", 1, 1, len(body), 0) + body)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["a", "<f8", [3]], "longer than its frame"),
        (["a", "<f8", []], "longer than its frame"),
        (["a", "|O", [1]], "describes an array"),
        (["a", "<f8", [-1]], "describes an array"),
        (["a", "<f8", [1, 1, 1]], "describes an array"),
        (["a", "<f8", [0, 10**40]], "describes an array"),
        (["a", "<f8", [True]], "describes an array"),
        (["a", "|u1", [2]], "2 bytes more than its arrays"),
    ],
)
def test_arrays_must_fill_their_frame_exactly(entry: list[object], message: str) -> None:
    body = json.dumps({"fields": {}, "arrays": [entry]}).encode()
    with pytest.raises(WireError, match=message):
        _decode(HEAD.pack(b"CP", 1, 1, len(body), 4) + body + b"abcd")


def test_a_long_frame_is_refused_before_it_is_read(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.sendall(HEAD.pack(b"CP", 1, 1, 2, wire.ARRAYS_LIMIT + 1))
    with pytest.raises(WireError, match="the limit is"):
        wire.receive(right)
    left.sendall(HEAD.pack(b"CP", 1, 1, wire.JSON_LIMIT + 1, 0))
    with pytest.raises(WireError, match="the limit is"):
        wire.receive(right)


def test_a_long_frame_cannot_be_made() -> None:
    with pytest.raises(WireError, match="the limit is"):
        wire.encode(Message(Kind.HELLO, {}, {"x": np.zeros(wire.ARRAYS_LIMIT // 8 + 1)}))
    with pytest.raises(WireError, match="which the protocol has not"):
        wire.encode(Message(Kind.HELLO, {}, {"x": np.array([object()])}))


@pytest.mark.parametrize("part", [1, HEAD.size - 1, HEAD.size, HEAD.size + 3, -1])
def test_a_frame_cut_short_is_refused(pair: tuple[socket.socket, socket.socket], part: int) -> None:
    left, right = pair
    left.sendall(wire.encode(Message(Kind.HELLO, {"rank": 1}, {"x": np.zeros(3)}))[:part])
    left.close()
    with pytest.raises(WireError, match="closed the connection inside a frame"):
        wire.receive(right)


def test_a_close_between_two_frames_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.sendall(wire.encode(Message(Kind.BYE)))
    left.close()
    first = wire.receive(right)
    assert first is not None
    assert first.kind is Kind.BYE
    assert wire.receive(right) is None


def test_another_protocol_or_version_is_named() -> None:
    with pytest.raises(WireError, match="not a frame of the cartpole protocol"):
        _decode(b"GET / HTTP/1.1\r\n")
    with pytest.raises(WireError, match="version 2 of the protocol"):
        _decode(HEAD.pack(b"CP", 2, 1, 2, 0) + b"{}")


@pytest.mark.parametrize("value", [None, "1", 1.5, True])
def test_a_number_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(WireError, match="a whole number was expected"):
        Message(Kind.FETCH, {"have": value}).integer("have")
