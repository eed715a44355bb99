"""Reads users' manifests, YAML or JSON, as plain data with line numbers.

Files are untrusted: size, depth and number of values are limited before the YAML library builds any object, and each
use of an alias counts. (The library recurses in C: 100,000 brackets would crash the process.) Where YAML 1.1 differs,
values are those of `kubectl`: a date, `12:30` and `=` are text.

It knows the shape of Kubernetes objects (kind, items of a List), but not the fields of a DIJob.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import yaml

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_FILE_BYTES, MOST_FILE_DEPTH, MOST_FILE_VALUES
from diflow.dijob.rules.kinds import way_over

_SURROGATES: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_INDEX: Final = re.compile(r"\[(\d+)\]")
_TAGS: Final = "tag:yaml.org,2002:"
_LISTS: Final = ("List", f"{keys.KIND}List")
_SHOWN: Final = 40
_MOST_REPEATED: Final = 20
_MOST_TITLES: Final = 5


class DuplicateKeyWarning(UserWarning):
    """A mapping has the same key twice; the last one counts."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file. `line` is its first line, 0 if unknown.

    `repeated` are the duplicate keys of mappings: the path, and the lines of the first and the last.
    """

    data: Any
    line: int = 0
    repeated: tuple[tuple[str, int, int], ...] = ()
    _node: yaml.Node | None = field(default=None, repr=False, compare=False)

    @property
    def is_job(self) -> bool:
        """Whether it is a DIJob, of any version."""
        return isinstance(self.data, dict) and self.data.get("kind") == keys.KIND

    @property
    def title(self) -> str:
        """Its kind and name, such as `ConfigMap settings`."""
        data = self.data if isinstance(self.data, dict) else {}
        metadata = data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        kind = data.get("kind")
        named = f" {name[:_SHOWN]}" if isinstance(name, str) and name else ""
        return f"{kind[:_SHOWN] if isinstance(kind, str) and kind else 'an object without a kind'}{named}"

    def line_of(self, path: str) -> int:
        """The line of the field at `path` (such as `spec.tasks[0].name`), or of its nearest existing parent."""
        node, line, rest = self._node, self.line, path
        while rest and node is not None:
            if isinstance(node, yaml.MappingNode):
                found = _entry(node, rest)
                if found is None:
                    break
                key, node = found
                line, rest = key.start_mark.line + 1, rest[len(key.value) :].removeprefix(".")
            elif isinstance(node, yaml.SequenceNode) and (match := _INDEX.match(rest)):
                index = int(match[1])
                if index >= len(node.value):
                    break
                node = node.value[index]
                line, rest = node.start_mark.line + 1, rest[match.end() :].removeprefix(".")
            else:
                break
        return line

    def warnings(self) -> list[str]:
        """Warnings about duplicate keys."""
        return [
            f"{path} is given twice, in {f'lines {first} and' if last != first else 'line'} {last}: the last one counts"
            for path, first, last in sorted(self.repeated, key=lambda one: one[2])
        ]


def read_file(path: Path) -> tuple[Document, ...]:
    """The objects in a file. Raises InvalidError that names the file."""
    try:
        with path.open("rb") as file:
            text = read_text(file)
    except FileNotFoundError:
        raise InvalidError(f"there is no file {path}: check the path") from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise InvalidError(f"{path} cannot be read: {problem}") from None
    except InvalidError as error:
        raise InvalidError(f"{path} cannot be read: {error.message}") from None
    return read(text)


def read_text(file: IO[bytes]) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte-order mark, as Windows writes it. Raises InvalidError."""
    data = file.read(MOST_FILE_BYTES + 1)
    _check_size(len(data))
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        what = f"byte 0x{data[error.start]:02x} in line {line}" if encoding == "utf-8-sig" else error.reason
        raise InvalidError(f"it is not text in UTF-8 ({what}): is it a manifest?") from None


def read(text: str) -> tuple[Document, ...]:
    """The objects in YAML or JSON text: those of all its documents, and the items of a `List`.

    Raises InvalidError, with line and column if known, if the text is invalid or exceeds a limit.
    """
    text = text.removeprefix("\ufeff")
    try:
        _check_size(len(text.encode()))
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise InvalidError(f"broken text in line {line}: half of a surrogate pair is not a character") from None
    try:
        found = _read_json(text)
        documents = found if found is not None else _read_yaml(text)
        objects = tuple(_items(documents))
        if documents and not objects:
            raise InvalidError(f"the List in line {documents[0].line} is empty: one of its items should be a DIJob")
        return objects
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise InvalidError(
            f"broken YAML at line {line}: the character {_code(error.character)} is not allowed"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise InvalidError(f"broken YAML{where}: {' '.join(problem.split())}") from None


def only_job(documents: Sequence[Document], *, instead: str = "put each job in a file of its own") -> Document:
    """The DIJob of a file that has one, or its only object, of any kind.

    Raises InvalidError if there are several; `instead` says what to do then.
    """
    jobs = jobs_among(documents)
    if len(jobs) > 1:
        raise InvalidError(f"the file holds {len(jobs)} jobs ({_titles(jobs)}): {instead}")
    return jobs[0]


def jobs_among(documents: Sequence[Document]) -> list[Document]:
    """The DIJobs of a file, or its only object, of any kind. Raises InvalidError if there is none."""
    if not documents:
        raise InvalidError("the file is empty: it should hold one DIJob")
    if len(documents) == 1:
        return list(documents)
    jobs = [document for document in documents if document.is_job]
    if not jobs:
        other = next(filter(None, (way_over(document.data) for document in documents)), "")
        why = f"the file holds {len(documents)} documents and none is a DIJob ({_titles(documents)})"
        raise InvalidError(f"{why}: {other}" if other else why)
    return jobs


def _titles(documents: Sequence[Document]) -> str:
    names = [f"{one.title}{f' in line {one.line}' if one.line else ''}" for one in documents[:_MOST_TITLES]]
    more = [f"{len(documents) - _MOST_TITLES} more"] if len(documents) > _MOST_TITLES else []
    return ", ".join(names + more)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: values that JSON can represent, and nothing else."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node. Text that does not match its tag's type is rejected, with its position."""
        try:
            value = super().construct_object(node, deep=deep)
            str(
                value if isinstance(value, int) else ""
            )  # hexadecimal integers are parsed without a limit, but not printed
            return value
        except (ValueError, KeyError, IndexError):  # `!!bool maybe`; also, Python does not convert 5,000 digits
            kind = str(node.tag).removeprefix(_TAGS)
            written = str(node.value)
            shown = written if len(written) <= _SHOWN else f"{written[:_SHOWN]}..."
            raise _error(f"{shown} cannot be read as {kind}: put it in quotes if it is text", node) from None

    def construct_other(self, node: yaml.Node) -> Any:
        """Reject a tag."""
        tag = str(node.tag).replace(_TAGS, "!!", 1)
        raise _error(f"{tag} is a type that Kubernetes objects do not have: write the value without it", node)


def _error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _text_of(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor(f"{_TAGS}timestamp", _text_of)
_Loader.add_constructor(f"{_TAGS}value", _text_of)
for _tag in ("binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"{_TAGS}{_tag}", _Loader.construct_other)
_Loader.add_constructor(None, _Loader.construct_other)
# Integers and base-60 numbers, such as 12:30, exist only in YAML 1.1: Go's libraries read text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in given if tag not in (f"{_TAGS}int", f"{_TAGS}float")]
    for first, given in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAGS}int",
    re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    f"{_TAGS}float",
    re.compile(
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?$|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


@dataclass(slots=True)
class _Part:
    """The size and depth of a list or mapping whose events are being read, or of an anchor."""

    anchor: str | None
    values: int = 1
    characters: int = 0
    height: int = 0

    def take(self, other: _Part) -> None:
        self.values += other.values
        self.characters += other.characters
        self.height = max(self.height, other.height + 1)


def _check_bounds(text: str) -> None:
    """Raise InvalidError for text that is too deeply nested or too large, without building objects."""
    opened: list[_Part] = []
    named: dict[str, _Part] = {}
    values = characters = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.DocumentStartEvent):
            named = {}
            continue
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Part(event.anchor))
            values += 1
            _check_depth(len(opened), line)
        elif isinstance(event, yaml.CollectionEndEvent):
            _close(opened.pop(), opened, named)
        elif isinstance(event, yaml.ScalarEvent):
            _close(_Part(event.anchor, characters=len(event.value), height=0), opened, named)
            values += 1
            characters += len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if any(part.anchor == event.anchor for part in opened):
                raise InvalidError(f"broken YAML at line {line}: *{event.anchor} is used inside of what it names")
            part = named.get(event.anchor or "", _Part(None))  # the composer reports a missing one
            _check_depth(len(opened) + part.height, line)
            _close(_Part(None, part.values, part.characters, part.height), opened, named)
            values += part.values
            characters += part.characters
        if values > MOST_FILE_VALUES or characters > MOST_FILE_BYTES:
            what = (
                f"{MOST_FILE_VALUES:,} values"
                if values > MOST_FILE_VALUES
                else f"{MOST_FILE_BYTES // 2**20} MiB of text"
            )
            raise InvalidError(f"the file holds more than {what} at line {line}, aliases counted: split it")


def _close(part: _Part, opened: list[_Part], named: dict[str, _Part]) -> None:
    if part.anchor:
        named[part.anchor] = part
    if opened:
        opened[-1].take(part)


def _check_depth(depth: int, line: int) -> None:
    if depth > MOST_FILE_DEPTH:
        raise InvalidError(f"lists and mappings are nested more than {MOST_FILE_DEPTH} levels deep at line {line}")


def _check_size(size: int) -> None:
    if size > MOST_FILE_BYTES:
        raise InvalidError(
            f"it has more than {MOST_FILE_BYTES // 2**20} MiB, more than a manifest of jobs may have: split it"
        )


def _read_json(text: str) -> list[Document] | None:
    """The document of JSON text; None if it is not JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > MOST_FILE_DEPTH:
            _check_depth(depth, text.count("\n", 0, match.start()) + 1)
    try:
        data = json.loads(text, parse_constant=_no_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidError("broken JSON: half of a surrogate pair is not a character") from None
    except ValueError:  # it may be YAML, whose parser has positions for errors
        return None
    try:  # for the lines: JSON is YAML except for surrogate pairs
        found = _read_yaml(_SURROGATES.sub(_character, text))
    except yaml.YAMLError:
        return [Document(data)]
    return [Document(data, one.line, one.repeated, one._node) for one in found[:1]]


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _character(match: re.Match[str]) -> str:
    high, low = int(match[2], 16), int(match[3], 16)
    return match[1] + chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _read_yaml(text: str) -> list[Document]:
    _check_bounds(text)
    loader = _Loader(text)
    found = []
    try:
        while loader.check_node():
            node = loader.get_node()
            repeated = tuple(islice(_repeated(node), _MOST_REPEATED))  # before merge keys are resolved
            data = loader.construct_document(node)
            if data is not None:
                found.append(Document(data, node.start_mark.line + 1, repeated, node))
    finally:
        loader.dispose()
    return found


def _items(documents: Sequence[Document]) -> Iterator[Document]:
    """The documents, where each `List` is replaced by its items."""
    for document in documents:
        data = document.data
        kind = data.get("kind") if isinstance(data, dict) else None
        items = data.get("items") if isinstance(data, dict) else None
        if kind in _LISTS and not isinstance(items, list):
            what = "no items" if items is None else "items that are not a list of objects"
            raise InvalidError(f"the {kind} in line {document.line} has {what}: it should look like items: [...]")
        if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
            yield document
            continue
        node = _value(document._node, "items")
        known = isinstance(node, yaml.SequenceNode) and len(node.value) == len(items)
        nodes = node.value if known and node is not None else [None] * len(items)
        parts = []
        for i, (item, part) in enumerate(zip(items, nodes, strict=True)):
            here = f"items[{i}]."
            repeated = tuple((p.removeprefix(here), a, b) for p, a, b in document.repeated if p.startswith(here))
            parts.append(Document(item, part.start_mark.line + 1 if part else document.line, repeated, part))
        yield from _items(parts)


@dataclass(frozen=True, slots=True)
class _Path:
    """The path of a node, linked to its parent's, so that long keys are not copied for each descendant."""

    above: _Path | None
    step: str

    def text(self) -> str:
        steps, at = [], self
        while at.above is not None:
            steps.append(at.step if len(at.step) <= _SHOWN else f"{at.step[:_SHOWN]}...")
            at = at.above
        return "".join(step if step.startswith("[") else f".{step}" for step in reversed(steps)).removeprefix(".")


def _repeated(root: yaml.Node) -> Iterator[tuple[str, int, int]]:
    """Duplicate keys of mappings, in the form of `Document.repeated`. Merge keys do not count."""
    waiting: list[tuple[_Path, yaml.Node]] = [(_Path(None, ""), root)]
    seen: set[int] = set()
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(_Path(path, f"[{i}]"), item) for i, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, str], yaml.ScalarNode] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                here = _Path(path, key.value)
                before = first.setdefault((key.tag, key.value), key)
                if before is not key and key.tag != f"{_TAGS}merge":
                    yield here.text(), before.start_mark.line + 1, key.start_mark.line + 1
                waiting.append((here, value))


def _entry(node: yaml.MappingNode, path: str) -> tuple[yaml.ScalarNode, yaml.Node] | None:
    """The last entry whose key is a prefix of the path; of several, the longest, as keys may have dots."""
    best: tuple[yaml.ScalarNode, yaml.Node] | None = None
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value and path.startswith(key.value):
            ends = path[len(key.value) :][:1] in ("", ".", "[")
            if ends and (best is None or len(key.value) >= len(best[0].value)):
                best = (key, value)
    return best


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    found = _entry(node, key) if isinstance(node, yaml.MappingNode) else None
    return found[1] if found else None


def _code(character: Any) -> str:
    return f"U+{character if isinstance(character, int) else ord(character):04X}"
