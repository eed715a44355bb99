"""Boundaries between the rooms that imports do not show. The others are contracts of import-linter (pyproject.toml)."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PATH = re.compile(r"`((?:cluster|diflow|docs|tests)/[\w./-]*)`")
MOST_FILES = 25

# Who may name the Workflow's parameters (keys.PARAM_...). The server writes and reads one of them, what a job reports,
# with a patch of its own. The probe of the conformance checks changes parameters by hand, to see what Argo does then.
_NAME_PARAMETERS = (
    "diflow/record/",
    "diflow/workflows/",
    "diflow/server/api/reading.py",
    "diflow/server/api/reporting.py",
    "diflow/labs/conformance/growth.py",
    "diflow/labs/conformance/rounds.py",
)


def sources() -> list[str]:
    """The files of the code."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "diflow").rglob("*.py"))


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
def test_the_three_folders_at_the_top_are_links(room: str) -> None:
    link = ROOT / room
    assert link.is_symlink()
    assert os.readlink(link) == f"diflow/{room}"


def test_no_folder_has_more_files_than_a_reader_takes_in() -> None:
    number = Counter(str(Path(name).parent) for name in sources())
    assert {folder: files for folder, files in number.items() if files > MOST_FILES} == {}


def test_the_map_of_the_rooms_names_what_is_there() -> None:
    named = _PATH.findall((ROOT / "docs" / "rooms.md").read_text())
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []
