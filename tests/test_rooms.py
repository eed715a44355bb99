"""Boundaries between the rooms that imports do not show. The others are contracts of import-linter (pyproject.toml)."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from diflow.common import contribs

ROOT = Path(__file__).parents[1]
_PATH = re.compile(r"`((?:cluster|diflow|docs|tests)/[\w./-]*)`")
MOST_FILES = 25
MOST_LINES = 60
# Functions that are longer, each with its reason. They may only become shorter.
_LONG_FUNCTIONS = {
    # A line for each of the arrays of a snapshot: in parts, they would be named twice or lose their types.
    "diflow/allocator/model/views.py: build": 102,
}
_ASKED = re.compile(r'contribs\.found\("([\w.]+)"\)')

# Who may name the Workflow's parameters (keys.PARAM_...). The server writes and reads one of them, what a job reports,
# with a patch of its own. The probe of the conformance checks changes parameters by hand, to see what Argo does then.
_NAME_PARAMETERS = (
    "diflow/record/",
    "diflow/workflows/",
    "diflow/contrib/di_orchestrator/",
    "diflow/server/api/reading.py",
    "diflow/server/api/reporting.py",
    "diflow/labs/conformance/growth.py",
    "diflow/labs/conformance/rounds.py",
)


# Who may read labels, annotations and parameters as they are sent: of what exists, the records do so once
# (diflow.record). None of these reads a job for another room.
_READ_OTHER_METADATA = {
    "diflow/allocator/write/patches.py": "of its own patches, before they are sent",
    "diflow/contrib/di_orchestrator/modules.py": "the record of a v1alpha1 job, which the core does not know",
    "diflow/contrib/di_orchestrator/workflow.py": "of the pod templates from which it makes a Workflow",
    "diflow/dijob/rules/generations.py": "of a manifest",
    "diflow/dijob/rules/podtemplate.py": "of the pod templates of a manifest",
    "diflow/kube/leader_election.py": "of a Lease",
    "diflow/workflows/pods.py": "of the pod templates from which it makes a Workflow",
    "diflow/workflows/steps.py": "of a manifest, from which it makes a step",
    "diflow/workflows/successor.py": "of a Workflow, of which it makes the next one",
    # The laboratory sees what Argo does to its own Workflows.
    "diflow/labs/conformance/admission.py": "of its experiment",
    "diflow/labs/conformance/lab.py": "of its experiment",
    "diflow/labs/conformance/reading.py": "of its experiment",
    "diflow/labs/conformance/retries.py": "of its experiment",
    "diflow/labs/conformance/rounds.py": "of its experiment",
    "diflow/labs/conformance/shapes.py": "of its experiment",
}
_RAW = frozenset({"annotations", "labels", "ownerReferences", "parameters"})


def sources() -> list[str]:
    """The files of the code."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "diflow").rglob("*.py"))


def reads_raw(text: str, fields: frozenset[str] = _RAW) -> list[int]:
    """The lines that read labels, annotations, owners or parameters of an object as the API server sends it."""
    return sorted(node.lineno for node in ast.walk(ast.parse(text)) if _is_raw(node, fields))  # type: ignore[attr-defined]


def _is_raw(node: ast.AST, fields: frozenset[str]) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and _names([node.slice], fields)
    if not isinstance(node, ast.Call) or not _names(node.args, fields):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in ("get", "pop", "sub")


def _names(values: list[ast.expr], fields: frozenset[str]) -> bool:
    return any(isinstance(value, ast.Constant) and value.value in fields for value in values)


@pytest.mark.parametrize("name", [name for name in sources() if not name.startswith("diflow/record/")])
def test_metadata_of_jobs_is_read_by_the_records_alone(name: str) -> None:
    found = reads_raw((ROOT / name).read_text())
    if name in _READ_OTHER_METADATA:
        assert found, f"{name} reads none any more: it leaves the list"
    else:
        assert not found, f"{name}, lines {found}: ask the record of the job, the pod or the node (diflow.record)"


@pytest.mark.parametrize("name", [name for name in sources() if name.startswith("diflow/server/api/")])
def test_the_api_reads_no_metadata_of_any_object(name: str) -> None:
    assert not reads_raw((ROOT / name).read_text(), _RAW | {"metadata"}), f"{name}: ask a record (diflow.record)"


def imported(path: Path, modules: frozenset[str]) -> set[str]:
    """The modules of diflow that a file imports: at its top, in a function, or for the type checker alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or {node.module}
            if not names <= modules:
                found.add(node.module)
    return found & modules


def test_no_imports_go_in_a_circle() -> None:
    """Neither those of the type checker nor those in functions: each file can be read before those that use it."""
    files = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): ROOT / name for name in sources()}
    # The package itself offers names of modules below it, which no module takes from there (but the laboratories).
    modules = frozenset(files) - {"diflow"}
    graph = {module: imported(files[module], modules) - {module} for module in modules}
    TopologicalSorter(graph).prepare()  # raises CycleError, with the circle


_MAY_NAME_LABORATORIES = ("diflow/labs/", "diflow/cli/")


@pytest.mark.parametrize("name", [name for name in sources() if not name.startswith(_MAY_NAME_LABORATORIES)])
def test_the_core_names_no_laboratory(name: str) -> None:
    """Not in a text either, which `import_module` would take: laboratories add themselves."""
    assert "diflow.labs" not in (ROOT / name).read_text()


_MAY_NAME_CONTRIBS = ("diflow/contrib/", "diflow/common/contribs.py")


@pytest.mark.parametrize("name", [name for name in sources() if not name.startswith(_MAY_NAME_CONTRIBS)])
def test_the_core_names_no_contrib(name: str) -> None:
    """Nor their parts: what they add is found by the place that asks for it (`diflow.common.contribs`)."""
    text = (ROOT / name).read_text()
    assert [part for part in ("diflow.contrib", "diflow import contrib", "di_orchestrator") if part in text] == []


def test_each_place_that_asks_for_contribs_has_some_and_each_of_them_is_asked_for() -> None:
    """A place that is misspelt would find nothing, and say nothing."""
    asked = {place for name in sources() for place in _ASKED.findall((ROOT / name).read_text())}
    assert asked == set(contribs.places())
    assert all(contribs.found(place) for place in asked)


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


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Each function of a file, with its length in lines, from its `def` on."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_function_is_longer_than_a_screen_without_a_reason() -> None:
    found = {
        f"{name}: {function}": lines
        for name in sources()
        for function, lines in functions((ROOT / name).read_text())
        if lines > MOST_LINES
    }
    # Equal: one that becomes shorter is entered with its new length, or leaves the list.
    assert found == _LONG_FUNCTIONS


def test_the_map_of_the_rooms_names_what_is_there() -> None:
    named = _PATH.findall((ROOT / "docs" / "rooms.md").read_text())
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []
