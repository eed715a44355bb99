"""Hostile bodies, the token buckets that limit rates, and the pool that bounds blocking calls."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import ApiError
from diflow.server.http.pool import Pool
from diflow.server.http.strictjson import DEEPEST, not_finite, parse
from tests.allocator.faults import Time
from tests.server.place import asynchronous, soon


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"\xff{}", "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"01", "not JSON"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b'{"a":1,"a":1}', "twice"),
        (b'{"a":1,"\\u0061":2}', "twice"),
        (b'{"b":{"a":1,"a":1}}', "twice"),
        (b"[" * 60_000, "deeper"),
        (b"[" * 33 + b"]" * 33, "deeper"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "deeper"),
        (b'"\\', "not JSON"),
        (b'"' + b"\\" * 60_001, "not JSON"),
        (b'"' + b"[" * 60_000, "deeper"),
    ],
)
def test_what_is_not_one_plain_value_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        parse(body)
    assert caught.value.status == 400


def test_what_is_deep_only_within_texts_is_not_deep() -> None:
    assert parse(json.dumps({"a": "[" * 100, "b\\": '"{' * 100}).encode()) == {"a": "[" * 100, "b\\": '"{' * 100}
    deep = b"[" * DEEPEST + b"]" * DEEPEST
    assert parse(deep) == json.loads(deep)


def test_constants_are_taken_where_they_are_to_be_found() -> None:
    value = parse(b'{"a":[1,NaN],"b":{"c":Infinity},"d":1e999,"e":1}', constants=True)
    assert list(not_finite(value)) == ["a[1]", "b.c", "d"]


def test_numbers_of_any_length_take_no_time() -> None:
    value = parse(b"[" + b"9" * 60_000 + b", 12]")
    assert value[0] == float("inf")
    assert value[1] == 12


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**18), 10**18)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
@settings(max_examples=60, derandomize=True, database=None)
def test_all_other_json_is_read_as_it_is(value: Any) -> None:
    assert parse(json.dumps(value, ensure_ascii=True).encode()) == value


@given(st.binary(max_size=60) | st.text(alphabet='[]{}"\\,:1aeN', max_size=60).map(str.encode))
@settings(max_examples=200, derandomize=True, database=None)
def test_whatever_comes_is_a_value_or_a_400(body: bytes) -> None:
    try:
        parse(body)
    except ApiError as error:
        if error.status != 400:
            raise


def test_a_bucket_gives_what_it_holds_and_fills_again() -> None:
    time = Time()
    buckets = Buckets(rate=2.0, burst=3, clock=time.clock)
    assert [buckets.take("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0.0
    time.move(0.5)
    assert buckets.take("a") == 0.0
    assert buckets.take("a") > 0
    time.move(1000)
    assert [buckets.take("a") for _ in range(4)][:3] == [0.0, 0.0, 0.0]
    assert buckets.take("a") > 0


def test_what_is_given_back_does_not_count() -> None:
    buckets = Buckets(rate=1.0, burst=2, clock=Time().clock)
    for _ in range(10):
        assert buckets.take("a") == 0.0
        buckets.refund("a")
    buckets.refund("a")
    buckets.refund("unknown")
    assert [bool(buckets.take("a")) for _ in range(3)] == [False, False, True]


def test_buckets_know_a_bounded_number_of_names() -> None:
    buckets = Buckets(rate=1.0, burst=1, most=10, clock=Time().clock)
    for number in range(1000):
        assert buckets.take(number) == 0.0
    assert len(buckets._levels) == 10


@asynchronous
async def test_a_pool_takes_so_much_and_no_more() -> None:
    pool = Pool("test", threads=1, waiting=1)
    go = threading.Event()
    try:
        running = [asyncio.ensure_future(pool.run(lambda: go.wait(60))) for _ in range(2)]
        await soon(lambda: pool.busy == 2)
        with pytest.raises(ApiError) as caught:
            await pool.run(lambda: True)
        assert caught.value.status == 503
        go.set()
        assert await asyncio.gather(*running) == [True, True]
        await soon(lambda: not pool.busy)
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
    finally:
        go.set()
        pool.close()
    with pytest.raises(ApiError, match="shutting down"):
        await pool.run(lambda: True)
