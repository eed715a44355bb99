"""What is kept of each namespace is counted, each shared part once, and bounded."""

from __future__ import annotations

import sys

from msgspec import Raw

from diflow.common.kept import KeptBytes, bytes_of


def text(size: int, *, of: str = "x") -> str:
    """A text that takes so many bytes."""
    return of * (size - sys.getsizeof(""))


def test_a_namespace_has_its_part_and_others_do_not_notice() -> None:
    kept = KeptBytes(1000)
    assert kept.admits(("evil", "a"), text(900))
    assert not kept.admits(("evil", "b"), text(200))
    assert kept.admits(("honest", "b"), text(200))
    assert kept.bytes_in("evil") == 900
    assert kept.full() == {"evil": 1}


def test_what_is_let_go_makes_room_for_what_waits_longest() -> None:
    kept = KeptBytes(1000)
    assert kept.admits(("n", "a"), text(1000))
    assert not kept.admits(("n", "b"), text(400))
    assert not kept.admits(("n", "c"), text(400))
    assert kept.next_left_out("n") == ""
    kept.forget(("n", "a"))
    assert kept.next_left_out("n") == "b"
    assert kept.admits(("n", "b"), text(400))
    assert kept.next_left_out("n") == "c"
    kept.forget(("n", "c"))
    assert kept.full() == {}
    kept.forget(("n", "b"))
    assert kept.bytes_in("n") == 0


def test_what_is_kept_may_become_smaller_and_grow_a_little_at_any_time() -> None:
    kept = KeptBytes(1000)
    assert kept.admits(("n", "a"), text(600))
    assert kept.admits(("n", "b"), text(400))
    assert kept.admits(("n", "b"), text(500)), "it runs"
    assert not kept.admits(("n", "c"), text(100))
    assert not kept.admits(("n", "b"), text(800)), "but not without end"
    assert kept.bytes_in("n") == 600
    assert kept.admits(("n", "a"), text(300))


def test_a_part_that_objects_share_counts_once() -> None:
    kept = KeptBytes(1200)
    shared = text(700, of="s")
    for name in "abc":
        assert kept.admits(("n", name), (text(60, of=name), shared), (shared,))
    assert 700 < kept.bytes_in("n") < 1200
    for name in "ab":
        kept.forget(("n", name))
    assert kept.bytes_in("n") > 700
    kept.forget(("n", "c"))
    assert kept.bytes_in("n") == 0


def test_all_that_an_object_refers_to_is_counted() -> None:
    assert bytes_of([{"a": [text(500), (text(500, of="y"),)]}]) > 1000
    assert bytes_of([Raw(b"x" * 500)]) == 500
    assert bytes_of([bytes_of, sys, str]) == 0
