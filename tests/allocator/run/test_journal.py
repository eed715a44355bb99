"""The daemon's journal is bounded, never stops the daemon, and is readable after a crash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.run import journal
from diflow.allocator.run.journal import Journal
from diflow.common.errors import InvalidError
from tests.policies.generators import snapshots


def cycles(count: int) -> list[tuple[Snapshot, Plan]]:
    policy = FitPolicy()
    return [(snapshot, policy.optimize(snapshot)) for snapshot in snapshots(3, count)]


def times(path: Path) -> list[tuple[str, ...]]:
    return [entry.snapshot.job_names for entry in journal.read(path)]


def test_what_was_written_is_read_and_decided_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write, made = Journal(path), cycles(20)
    for snapshot, plan in made:
        write(snapshot, plan)
    assert times(path) == [snapshot.job_names for snapshot, _ in made]
    assert journal.compare(path, ["fit"]) == journal.Comparison(20, {"fit": []})


@pytest.mark.parametrize("how", ["lacking", "empty"])
def test_a_journal_of_an_older_version_is_read(tmp_path: Path, how: str) -> None:
    """It lacks fields, or has them without entries where all jobs and nodes have the same."""
    path, made = tmp_path / "journal", cycles(5)
    empty = {"shape": [0], "kind": "i", "data": []}
    older: dict[str, object] = {"job_required": empty, "role_unit": empty, "job_refusal": [], "level_names": []}
    older |= {"domain_names": [], "node_domain": {"shape": [0, 0], "kind": "i", "data": []}}
    with path.open("w", encoding="utf-8") as file:
        for snapshot, plan in made:
            entry = json.loads(journal.line(snapshot, plan))
            fields = entry["snapshot"] | older
            if how == "lacking":
                fields = {name: value for name, value in fields.items() if name not in older}
            file.write(json.dumps({**entry, "snapshot": fields}) + "\n")
    for entry, (snapshot, _) in zip(journal.read(path), made, strict=True):
        assert entry.snapshot.node_domain.shape == (0, snapshot.nodes)
        assert entry.snapshot.job_required.tolist() == [-1] * snapshot.jobs
        assert entry.snapshot.role_unit.tolist() == [1] * snapshot.roles
        assert entry.snapshot.job_refusal == ("",) * snapshot.jobs
    assert journal.compare(path, ["fit"]) == journal.Comparison(5, {"fit": []})


def test_files_are_bounded_and_the_oldest_entries_go(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    made = cycles(60)
    longest = max(len(journal.line(*cycle)) for cycle in made) + 1
    write = Journal(path, most_bytes=3 * longest, keep=3)
    for cycle in made:
        write(*cycle)
    assert write.trouble == ""
    assert {p.name for p in tmp_path.iterdir()} == {"journal", "journal.1", "journal.2"}
    assert all(p.stat().st_size <= 3 * longest for p in tmp_path.iterdir())
    kept = [t for name in ("journal.2", "journal.1", "journal") for t in times(tmp_path / name)]
    assert kept == [snapshot.job_names for snapshot, _ in made][-len(kept) :]
    assert len(kept) >= 6


def test_a_single_file_is_replaced_when_full(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    (cycle,) = cycles(1)
    write = Journal(path, most_bytes=len(journal.line(*cycle)) + 1, keep=1)
    write(*cycle)
    write(*cycle)
    assert [p.name for p in tmp_path.iterdir()] == ["journal"]
    assert len(times(path)) == 1


@pytest.mark.parametrize("rest", ['{"snapshot": {', "x" * 200_000, '{"snapshot"'])
def test_a_line_that_a_crash_cut_is_skipped_and_removed(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "journal"
    made = cycles(3)
    first = Journal(path)
    first(*made[0])
    first(*made[1])
    with path.open("a") as file:
        file.write(rest)
    assert len(times(path)) == 2
    Journal(path)(*made[2])
    assert times(path) == [snapshot.job_names for snapshot, _ in made]


def test_a_file_with_only_a_cut_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("{")
    (cycle,) = cycles(1)
    Journal(path)(*cycle)
    assert len(times(path)) == 1


def test_a_full_disk_is_reported_once_and_writing_resumes(tmp_path: Path) -> None:
    path, told = tmp_path / "journal", list[str]()
    path.symlink_to("/dev/full")
    write, made = Journal(path, report=told.append), cycles(3)
    write(*made[0])
    write(*made[0])
    assert told == [f"the journal {path} cannot be written: No space left on device"]
    path.unlink()
    write(*made[1])
    assert write.trouble == ""
    assert times(path) == [made[1][0].job_names]


def test_a_folder_may_be_removed_and_created_again(tmp_path: Path) -> None:
    path, told = tmp_path / "logs" / "journal", list[str]()
    write, made = Journal(path, report=told.append), cycles(3)
    write(*made[0])
    assert len(told) == 1
    path.parent.mkdir()
    write(*made[1])
    shutil.rmtree(path.parent)
    write(*made[2])
    assert len(told) == 2
    assert "No such file or directory" in told[1]


def test_an_entry_larger_than_a_file_is_reported_and_skipped(tmp_path: Path) -> None:
    path, told = tmp_path / "journal", list[str]()
    (cycle,) = cycles(1)
    Journal(path, most_bytes=100, report=told.append)(*cycle)
    assert "is more than a file may have (100)" in told[0]
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["[1]", "\x00\x01\ufffd", "[" * 100_000, '{"snapshot": {}}', '"decided": 3', '"decided": {"a": 3}']
)
def test_a_line_that_is_not_an_entry_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal"
    (cycle,) = cycles(1)
    Journal(path)(*cycle)
    if text.startswith('"decided"'):
        text = journal.line(*cycle).partition('"decided"')[0] + text + "}"
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    with pytest.raises(InvalidError, match="line 2: no entry of a journal"):
        list(journal.read(path))
    with pytest.raises(InvalidError, match="cannot be read"):
        list(journal.read(tmp_path / "nothing"))


def test_a_difference_in_nothing_but_the_nodes_names_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    nodes = [NodeView("n1", {"gpu": 2}), NodeView("n2", {"gpu": 4})]
    snapshot = build(nodes, [JobView("a", (RoleView("w", {"gpu": 1}, 2, 2, 2),))])
    plan = FitPolicy().optimize(snapshot)
    taken = snapshot.node_names[int(plan.node[0])]
    other = "n2" if taken == "n1" else "n1"
    path.write_text(journal.line(snapshot, plan).replace(f'{{"{taken}":2}}', f'{{"{other}":2}}') + "\n")
    (found,) = journal.compare(path).differences["fit"]
    assert found.then == f"admit with 2 replicas on {other} (2)"
    assert found.now == f"admit with 2 replicas on {taken} (2)"
