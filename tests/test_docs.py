"""The documentation: links resolve, what it names exists, and the messages that it quotes are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command

from diflow.cli.app import app
from diflow.common import keys
from diflow.kube.leader_election import WRITES_AS
from diflow.version import __version__

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    ROOT / "cluster" / "README.md",
    *sorted((ROOT / "examples").rglob("README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MOST_WORDS_OF_THE_README = 900

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)$", re.MULTILINE)
_STEP = re.compile(r"^\| `([\w/.]+\.py)` \| (`[^|]+`) \|", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[|;$(] *)diflow ([a-z]+)([^|;#]*)")

# Words of Kubernetes that the code reads and does not write.
_OF_KUBERNETES = re.compile(
    r"Insufficient|didn't match|had untolerated|ErrImage|CreateContainer|unbound immediate|OOMKill|find parent node"
)


def prose(path: Path) -> str:
    """The page without its code."""
    return _CODE.sub("", _FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (anchor := slug + (f"-{number}" if number else "")) in found:
            number += 1
        found.add(anchor)
    return found


def broken(path: Path) -> list[str]:
    """The broken relative links of a page."""
    out = []
    for link in _LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        good = target.exists() and (not anchor or (target.suffix == ".md" and anchor in anchors(target)))
        if not good:
            out.append(link)
    return out


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_all_relative_links_and_anchors_of_a_page_resolve(path: Path) -> None:
    assert broken(path) == []


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_THE_README


def test_the_readme_names_the_image_of_this_version() -> None:
    named = re.findall(r"/diflow:(\d+\.\d+\.\d+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(named) == {__version__}


def test_the_index_names_each_page_of_the_docs() -> None:
    linked = set(_LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    assert pages - linked == set()


def test_the_walks_of_the_architecture_name_files_and_functions_that_exist() -> None:
    steps = _STEP.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(steps) > 40
    missing = [
        f"{file}: {name}"
        for file, names in steps
        for name in re.findall(r"`(\w+)`", names)
        if not (ROOT / file).is_file() or not re.search(rf"\b(def|class) {name}\b", (ROOT / file).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_command_in_the_docs_exists_with_its_options(path: Path) -> None:
    root = get_command(app)
    assert isinstance(root, Group)
    text = path.read_text(encoding="utf-8")
    wrong = []
    for line in re.findall(r"^    (.*)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text):
        for name, rest in _COMMAND.findall(line):
            found = root.commands.get(name)
            if isinstance(found, Group):
                found = found.commands.get(next(iter(rest.split()), ""), found)
            if found is None:
                wrong.append(name)
            elif name != "simulate":  # its options are those of the simulator's own command line
                known = {option for parameter in found.params for option in parameter.opts}
                wrong += [f"{name} {option}" for option in re.findall(r"(?<!\S)--[a-z-]+", rest) if option not in known]
    assert wrong == []


@cache
def said() -> str:
    """All texts of the code, with a \\0 for what is filled in."""
    out = []
    for room in ("diflow",):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    out.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    out.append(re.sub(r"\{[^{}]*\}", "\0", node.value))
    return "\n".join(out)


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    assert len(rows) > 40
    quoted = [quote for row in rows for quote in re.findall(r"`([^`]+)`", row) if not _OF_KUBERNETES.search(quote)]
    parts = [part.strip() for quote in quoted for part in quote.split("...")]
    assert [part for part in parts if len(part.split()) > 2 and part not in said()] == []


def test_the_glossary_names_each_parameter_and_each_key_of_diflow() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z/-]+)`", text))
    values = {name: value for name, value in vars(keys).items() if isinstance(value, str)}
    parameters = {value for name, value in values.items() if name.startswith("PARAM_")}
    own = {value for value in values.values() if re.fullmatch(r"diflow/[a-z-]+", value)} | {WRITES_AS}
    assert (parameters | own) - named == set()
    assert {name for name in named if name.startswith("diflow/")} - own == set()
