"""Converts the objects of a file to DIJobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from diflow.common.errors import InvalidError
from diflow.dijob.manifests import Document
from diflow.dijob.migrate.pytorchjob import pytorchjob
from diflow.dijob.migrate.reading import Json, Remark
from diflow.dijob.migrate.trainjob import RUNTIMES, trainjob
from diflow.dijob.model import DIJob, unknown_fields
from diflow.dijob.rules.kinds import other_kind, way_over
from diflow.dijob.yamltext import dump_yaml


@dataclass(frozen=True, slots=True)
class Converted:
    """A DIJob that was made of an object of another program, and what of that does not carry over."""

    title: str
    manifest: Json
    remarks: tuple[Remark, ...]

    def text(self) -> str:
        """The manifest in YAML, under comments with the remarks."""
        head = [f"# Made of {self.title} by `diflow convert`."]
        if self.remarks:
            head.append("# What does not carry over, or is different:")
            head += [f"# - {_one_line(str(remark))}" for remark in self.remarks]
        return "\n".join([*head, dump_yaml(self.manifest)])


def convert(documents: Sequence[Document]) -> tuple[list[Converted], list[Document]]:
    """(the jobs of a file as DIJobs, its other objects). Raises InvalidError, with a path in the original, if a job
    cannot be converted, and if there is none."""
    runtimes = {
        (one.data["kind"], _name(one)): one.data for one in documents if _is(one, "trainer.kubeflow.org", *RUNTIMES)
    }
    out: list[Converted] = []
    left: list[Document] = []
    for one in documents:
        if _is(one, "kubeflow.org", "PyTorchJob"):
            out.append(_converted(one, pytorchjob))
        elif _is(one, "trainer.kubeflow.org", "TrainJob"):
            out.append(_converted(one, lambda data, remarks: trainjob(data, remarks, runtimes)))
        elif not _is(one, "trainer.kubeflow.org", *RUNTIMES):
            left.append(one)
    if not out:
        raise InvalidError(_why_none(documents))
    return out, left


def _converted(document: Document, made: Callable[[Json, list[Remark]], tuple[Json, dict[int, str]]]) -> Converted:
    remarks: list[Remark] = []
    paths: dict[int, str] = {}
    try:
        manifest, paths = made(document.data, remarks)
        with unknown_fields() as unknown:
            DIJob.from_manifest(manifest)
        if unknown:
            raise InvalidError(unknown[0].said, path=unknown[0].path)
    except InvalidError as error:
        path = _original(error.path, paths)
        line = document.line_of(path)
        raise InvalidError(f"{error.message}{f' (line {line})' if line else ''}", path=path) from None
    return Converted(document.title, manifest, tuple(dict.fromkeys(remarks)))


def _original(path: str, paths: dict[int, str]) -> str:
    """The path in the original of a field of a template."""
    for i, own in paths.items():
        head = f"spec.tasks[{i}].template"
        if path.startswith(head):
            return own + path[len(head) :]
    return path


def _is(document: Document, group: str, *kinds: str) -> bool:
    data: Any = document.data
    if not isinstance(data, dict) or data.get("kind") not in kinds:
        return False
    return str(data.get("apiVersion")).rpartition("/")[0] == group


def _name(document: Document) -> str:
    metadata = document.data.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""


def _why_none(documents: Sequence[Document]) -> str:
    if not documents:
        return "the file is empty: it should hold a PyTorchJob or a TrainJob"
    first = documents[0]
    if first.is_job:
        return f"{first.title} is a DIJob already"
    other = next((one for one in documents if other_kind(one.data)), None)
    why = way_over(other.data) if other is not None else f"{first.title} is no job that is known"
    return f"{why}; a PyTorchJob (kubeflow.org/v1) and a TrainJob (trainer.kubeflow.org/v1alpha1) are converted"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
