"""Reads the job that a user names on the command line: a YAML file, standard input, or a Python variable."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from diflow.cli.console import warn
from diflow.errors import DiflowError, InvalidError

if TYPE_CHECKING:
    from diflow.job import DIJob

STDIN: Final = "-"
_MODULE: Final = re.compile(r"(?P<module>[\w./\\-]+?):(?P<name>[A-Za-z_]\w*)")


def load(
    source: str, *, name: str | None = None, namespace: str | None = None, warned: list[str] | None = None
) -> DIJob:
    """The job that `source` names (FILE, - or module:name), under another name or namespace if one is given.

    Unknown fields of a manifest are told on stderr, or put into `warned`. Raises InvalidError that says what is wrong.
    """
    from diflow.job import DIJob, UnknownFieldWarning  # noqa: PLC0415 (pydantic and Hera's models take a while)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnknownFieldWarning)
        try:
            job = _read(source, DIJob)
            given = {"name": name, "namespace": namespace}
            changes = {key: value for key, value in given.items() if value not in (None, getattr(job, key))}
            if changes:  # by way of the manifest, so that the new name is checked with all that depends on it
                manifest = job.to_manifest()
                manifest["metadata"] = {**manifest["metadata"], **changes}
                job = DIJob.from_manifest(manifest)
        except InvalidError:
            # A field whose name is misspelt is often why: `replicsa: 4` leaves one replica, below the minimum.
            _tell_unknown(caught, UnknownFieldWarning, warned)
            raise
    _tell_unknown(caught, UnknownFieldWarning, warned)
    for other in caught:
        if not issubclass(other.category, UnknownFieldWarning):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return job


def _tell_unknown(caught: list[warnings.WarningMessage], kind: type[Warning], warned: list[str] | None) -> None:
    for text in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, kind)):
        if warned is None:
            warn(text)
        else:
            warned.append(text)


def _read(source: str, kind: type[DIJob]) -> DIJob:
    if source == STDIN:
        return kind.from_yaml(sys.stdin.read())
    match = _MODULE.fullmatch(source)
    if match and not Path(source).exists():
        return _variable(match["module"], match["name"], kind)
    path = Path(source)
    if path.is_dir():
        raise InvalidError(f"{source} is a folder: name the file of a DIJob in it")
    if path.suffix == ".py":
        raise InvalidError(f"{source} is Python: say which variable holds the job, such as {source}:job")
    try:
        return kind.from_yaml(path)
    except InvalidError as error:
        if not path.exists():
            raise
        raise InvalidError(error.message, path=f"{source}: {error.path}" if error.path else source) from None


def _variable(module: str, name: str, kind: type[DIJob]) -> DIJob:
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
    """Import a module by its dotted name or by its file. The working directory is on the path, as with python -m."""
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
