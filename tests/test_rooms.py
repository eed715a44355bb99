"""Boundaries between the rooms that imports do not show. The others are contracts of import-linter (pyproject.toml)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PATH = re.compile(r"`((?:allocator|cluster|diflow|docs|server|tests|workflows)/[\w./-]*)`")

# Who may name the Workflow's parameters (keys.PARAM_...). The server writes and reads one of them, what a job reports,
# with a patch of its own. The probe of the conformance checks changes parameters by hand, to see what Argo does then.
_NAME_PARAMETERS = (
    "diflow/record/",
    "workflows/",
    "diflow/server/api/reading.py",
    "diflow/server/api/reporting.py",
    "diflow/labs/conformance/growth.py",
    "diflow/labs/conformance/rounds.py",
)


def sources() -> list[str]:
    """The files of the code, by their real folders."""
    found = [
        path.relative_to(ROOT).as_posix()
        for room in ("allocator", "diflow", "server", "workflows")
        for path in (ROOT / room).rglob("*.py")
    ]
    linked = tuple(f"diflow/{room}/" for room in ("allocator", "server", "workflows"))
    return sorted(name for name in found if not name.startswith(linked))


def test_the_files_are_found() -> None:
    assert len(sources()) > 200


@pytest.mark.parametrize("name", [name for name in sources() if not name.startswith(_NAME_PARAMETERS)])
def test_the_parameters_of_a_workflow_are_named_in_one_place(name: str) -> None:
    assert "keys.PARAM_" not in (ROOT / name).read_text(), f"{name}: read and write them through diflow.record"


@pytest.mark.parametrize("name", [name for name in sources() if name.startswith("diflow/kube/")])
def test_the_client_of_kubernetes_names_no_dijob(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "DIJob" not in text.replace("It does not know DIJobs.", "")
    assert "keys." not in text
    assert [advice for advice in ("diflow doctor", "make cluster", "manifests/") if advice in text] == []


@pytest.mark.parametrize("room", ["allocator", "server", "workflows"])
def test_the_three_links_lead_to_the_top(room: str) -> None:
    link = ROOT / "diflow" / room
    assert link.is_symlink()
    assert link.resolve() == ROOT / room


def test_the_map_of_the_rooms_names_what_is_there() -> None:
    named = _PATH.findall((ROOT / "docs" / "rooms.md").read_text())
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []
