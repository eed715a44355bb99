"""Addresses: a cluster never takes a network that is in use."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from cluster.errors import ClusterError
from cluster.network import Addresses, choose, link_name

EVERYTHING = [IPv4Network(f"10.{second}.0.0/16") for second in range(201, 255)]


def test_the_same_name_gets_the_same_block_again() -> None:
    assert choose("diflow", []) == choose("diflow", [])


def test_a_block_that_is_taken_is_passed_over() -> None:
    first = choose("diflow", [])
    assert choose("diflow", [first.block]).block != first.block


def test_a_single_route_inside_a_block_takes_all_of_it() -> None:
    first = choose("diflow", [])
    inside = IPv4Network(f"{first.node_ip}/32")
    assert not choose("diflow", [inside]).block.overlaps(inside)


def test_a_network_that_holds_all_but_one_block_leaves_that_one() -> None:
    free = IPv4Network("10.230.0.0/16")
    assert choose("anything", [n for n in EVERYTHING if n != free]).block == free


def test_with_nothing_free_the_message_says_what_to_do() -> None:
    with pytest.raises(ClusterError, match="take a cluster down"):
        choose("diflow", [IPv4Network("10.0.0.0/8")])


def test_link_pods_services_and_fake_pods_do_not_overlap() -> None:
    addresses = Addresses(IPv4Network("10.230.0.0/16"))
    parts = [addresses.link, addresses.pods, addresses.fake_pods, addresses.services]
    for index, part in enumerate(parts):
        assert part.subnet_of(addresses.block)
        assert not any(part.overlaps(other) for other in parts[index + 1 :])


def test_the_name_of_the_wire_fits_into_an_interface_name_and_differs_between_clusters() -> None:
    names = {link_name(f"cluster-{index}") for index in range(100)}
    assert len(names) == 100
    assert all(len(name) <= 15 for name in names)
