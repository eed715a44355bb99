"""Control groups: version 1, version 2 and the two side by side are distinguished."""

from __future__ import annotations

from pathlib import Path

from cluster.cgroups import Hierarchy, parse_hierarchies

V1 = """\
24 21 0:21 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
25 24 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
26 24 0:23 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/systemd/agent,name=systemd
"""
BESIDE = "27 24 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
ELSEWHERE = "31 23 0:27 / /mnt/other rw - cgroup cgroup rw,memory\n"

FIRST = [
    Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu,cpuacct"),
    Hierarchy(Path("/sys/fs/cgroup/systemd"), "none,name=systemd"),
]


def test_version_one_gives_each_hierarchy_with_the_options_to_mount_it_again() -> None:
    assert parse_hierarchies(V1) == FIRST


def test_version_two_beside_version_one_is_left_alone() -> None:
    assert parse_hierarchies(V1 + BESIDE) == FIRST


def test_version_two_alone_is_one_hierarchy() -> None:
    assert parse_hierarchies(V2) == [Hierarchy(Path("/sys/fs/cgroup"), "")]
    assert parse_hierarchies(V2)[0].is_v2


def test_groups_that_are_mounted_elsewhere_do_not_count() -> None:
    assert parse_hierarchies(ELSEWHERE + V2) == parse_hierarchies(V2)
