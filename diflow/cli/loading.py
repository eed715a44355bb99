"""Loads the jobs named on the command line: a YAML file, standard input, or a Python variable."""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from diflow.cli.console import note, warn
from diflow.common.errors import DiflowError, InvalidError
from diflow.dijob.manifests import Document, jobs_among, only_job, read, read_file, read_text
from diflow.dijob.rules.fields import without_effect
from diflow.dijob.rules.kinds import other_kind

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob, UnknownFieldWarning

STDIN: Final = "-"
_MOST_TOLD: Final = 10
_MODULE: Final = re.compile(r"(?P<module>[\w./\\-]+?):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Source:
    """One job on the command line: an object of a file, or a Python variable."""

    where: str
    document: Document | None
    variable: DIJob | None = None

    def load(
        self,
        *,
        name: str | None = None,
        namespace: str | None = None,
        warned: list[str] | None = None,
    ) -> DIJob:
        """The job, with another name or namespace if given.

        Warnings about its manifest are written to stderr, or appended to `warned`. Raises InvalidError with file and
        line, also for a field that is not known; the other ones of these are among the warnings.
        """
        from diflow.dijob.model import DIJob, unknown_fields  # noqa: PLC0415 (pydantic and Hera's models take a while)

        doubts = self.document.warnings() if self.document else []
        with unknown_fields() as unknown:
            try:
                job = self.variable or DIJob.from_manifest(self.document.data if self.document else None)
            except InvalidError as error:
                # A misspelt field is often the cause: with `replicsa: 4` there is one replica, below the minimum.
                _tell(doubts + self._unknown(unknown), warned)
                raise self.in_file(error) from None
        if unknown:
            _tell(doubts + self._unknown(unknown[1:]), warned)
            raise self.in_file(InvalidError(unknown[0].said, path=unknown[0].path))
        given = {"name": name, "namespace": namespace}
        changes = {key: value for key, value in given.items() if value not in (None, getattr(job, key))}
        if job.namespace and changes.get("namespace"):
            doubts = [
                *doubts,
                f"the namespace {namespace} is used instead of {job.namespace}, which the manifest has",
            ]
        if changes:  # through the manifest, so that everything that depends on the name is checked
            manifest = job.to_manifest()
            manifest["metadata"] = {**manifest["metadata"], **changes}
            job = DIJob.from_manifest(manifest)
        ineffective = without_effect(task.template for task in job.tasks)
        _tell([*doubts, *(f"{path} {text}{self._line(path)}" for path, text in ineffective)], warned)
        return job

    def in_file(self, error: InvalidError) -> InvalidError:
        """The error with the file and the line."""
        if self.document is None or self.where == STDIN:
            return InvalidError(f"{error.message}{self._line(error.path)}", path=error.path)
        path = f"{self.where}: {error.path}" if error.path else self.where
        return InvalidError(f"{error.message}{self._line(error.path)}", path=path)

    def _unknown(self, fields: Sequence[UnknownFieldWarning]) -> list[str]:
        each = {field.path: field for field in fields[:_MOST_TOLD]}
        return [f"{path} {field.said}{self._line(path)}" for path, field in each.items()]

    def _line(self, path: str) -> str:
        line = self.document.line_of(path) if self.document else 0
        return f" (line {line})" if line else ""


def load(source: str, *, name: str | None = None, namespace: str | None = None) -> DIJob:
    """The one job that `source` names (FILE, - or module:name). Other objects of the file are listed on stderr."""
    return load_all(source, name=name, namespace=namespace)[0]


def load_all(
    source: str,
    *,
    name: str | None = None,
    namespace: str | None = None,
    every: bool = False,
    hint: str = "",
) -> list[DIJob]:
    """The jobs that `source` names; more than one only with `every`, else `hint` says what to do."""
    found, left = sources(source)
    if len(found) > 1 and not every:
        documents = [one.document for one in found if one.document]
        instead = f"put the one that you mean in a file of its own{hint}"
        try:
            only_job(documents, instead=instead)
        except InvalidError as error:
            raise _named(source, error) from None
    if len(found) > 1 and name is not None:
        raise InvalidError(f"{source} holds {len(found)} jobs, which cannot all have one name", path="--name")
    jobs = [one.load(name=name, namespace=namespace) for one in found]
    seen: set[tuple[str | None, str]] = set()
    for job in jobs:
        check_names(source, job, seen)
    tell_left(source, left)
    return jobs


def check_names(source: str, job: DIJob, seen: set[tuple[str | None, str]]) -> None:
    """Add the name of a job to `seen`. Raises InvalidError if another job of the same file has it."""
    if (job.namespace, job.name) in seen:
        where = f" in the namespace {job.namespace}" if job.namespace else ""
        raise InvalidError(f"{source} holds two jobs of the name {job.name}{where}: give one of them another name")
    seen.add((job.namespace, job.name))


def tell_left(source: str, left: Sequence[Document]) -> None:
    """Say on stderr which objects of a file are not jobs, and are ignored."""
    for document in left[:_MOST_TOLD]:
        where = f" (line {document.line})" if document.line else ""
        other = other_kind(document.data)
        what = f"is {other.what}, and not a DIJob: it" if other else "is not a job and"
        rest = other.way if other else "create it with kubectl"
        note(f"{source}: {document.title}{where} {what} is left out: {rest}")
    if len(left) > _MOST_TOLD:
        note(f"{source}: {len(left) - _MOST_TOLD} more objects are left out")


def sources(source: str) -> tuple[list[Source], list[Document]]:
    """(the jobs that `source` names, the file's other objects). Raises InvalidError if there is no job."""
    if not source:
        raise InvalidError("the name of the file is empty: name one, or - for standard input, or module:name")
    match = _MODULE.fullmatch(source)
    if source != STDIN and match and not _exists(source):
        return [Source(source, None, _variable(match["module"], match["name"]))], []
    found = documents(source)
    try:
        jobs = jobs_among(found)
    except InvalidError as error:
        raise _named(source, error) from None
    left = [one for one in found if not one.is_job] if len(found) > 1 else []
    return [Source(source, document) for document in jobs], left


def documents(source: str) -> tuple[Document, ...]:
    """The objects in a file, or in standard input. Raises InvalidError."""
    return read(_stdin_text()) if source == STDIN else _file(source)


def _named(source: str, error: InvalidError) -> InvalidError:
    return InvalidError(error.message, path="" if source == STDIN else source)


def _tell(texts: list[str], warned: list[str] | None) -> None:
    if warned is not None:
        warned += texts
        return
    for text in texts:
        warn(text)


def _stdin_text() -> str:
    """The text of standard input. Raises InvalidError if it is closed or not text."""
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidError("standard input is closed: give a file, or feed one in (diflow render - < job.yaml)")
    try:
        return read_text(getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode()))
    except InvalidError as error:
        raise InvalidError(f"standard input cannot be read: {error.message}") from None
    except (OSError, ValueError) as error:
        raise InvalidError(f"standard input cannot be read: {error}") from None


def _exists(source: str) -> bool:
    """Whether a file or folder has this name. Raises InvalidError for an invalid name."""
    try:
        return Path(source).exists()
    except OSError as error:  # such as a name that is too long
        raise InvalidError(f"{source} cannot be read: {error.strerror}") from None


def _file(source: str) -> tuple[Document, ...]:
    path = Path(source)
    if _exists(source) and path.is_dir():
        raise InvalidError(f"{source} is a folder: name the file of a DIJob in it")
    if path.suffix == ".py":
        raise InvalidError(f"{source} is Python: say which variable holds the job, such as {source}:job")
    try:
        return read_file(path)
    except InvalidError as error:
        raise error if source in error.message else _named(source, error) from None


def _variable(module: str, name: str) -> DIJob:
    from diflow.dijob.model import DIJob as kind  # noqa: N813, PLC0415 (pydantic and Hera's models take a while)

    loaded = _module(module)
    if not hasattr(loaded, name):
        jobs = [key for key, value in vars(loaded).items() if isinstance(value, kind)]
        hint = f"; it has {', '.join(jobs)}" if jobs else ""
        raise InvalidError(f"{module} has no variable {name}{hint}")
    value = getattr(loaded, name)
    if not isinstance(value, kind):
        raise InvalidError(f"{module}:{name} is a {type(value).__name__}, not a DIJob")
    return value


def _module(module: str) -> ModuleType:
    """Import a module by its dotted name or its file. The working directory is on sys.path, as with python -m."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    file = Path(module)
    try:
        if file.suffix == ".py" or file.is_file():
            return _import_file(file)
        return importlib.import_module(module.removesuffix("/").replace("/", "."))
    except DiflowError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise InvalidError(f"there is no module {module}: check its name, and the folder that you are in") from None
        raise InvalidError(f"{module} cannot be imported: {error}") from None
    except Exception as error:
        raise InvalidError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise InvalidError(f"there is no file {file}: check the path")
    spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{file} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(file.parent.resolve()))
    return loaded
