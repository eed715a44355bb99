"""Reads an object of another program field by field: what is not known of it is an error, and what has no counterpart a
remark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from diflow.common.errors import InvalidError
from diflow.common.words import meant
from diflow.dijob.rules.complaints import describe
from diflow.dijob.rules.metadata import check_annotations, check_labels

Json = dict[str, Any]
Kind = TypeVar("Kind")

_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false", dict: "a mapping", int: "an integer", list: "a list", str: "text",
}  # fmt: skip
_SERVERS: Final = (
    "creationTimestamp", "finalizers", "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink",
    "uid",
)  # fmt: skip
"""Metadata that belongs to the object in its cluster."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What does not carry over: the path of a field of the original, and what to do instead."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@dataclass(slots=True)
class Part:
    """A mapping of the original, whose fields are taken one by one."""

    data: Mapping[str, Any]
    path: str
    remarks: list[Remark]
    known: list[str] = field(default_factory=list)

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str, kind: type[Kind]) -> Kind | None:
        """The value of a field, None if it is not set. Raises InvalidError if it is of another type."""
        self.known.append(name)
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidError(f"must be {_WORDS[kind]}, not {describe(value)}", path=self.at(name))
        return value

    def part(self, name: str) -> Part:
        """A field that is a mapping, empty if it is not set."""
        return Part(self.take(name, dict) or {}, self.at(name), self.remarks)

    def parts(self, name: str) -> list[Part]:
        """A field that is a list of mappings."""
        found = []
        for i, item in enumerate(self.take(name, list) or []):
            path = f"{self.at(name)}[{i}]"
            if not isinstance(item, dict):
                raise InvalidError(f"must be a mapping, not {describe(item)}", path=path)
            found.append(Part(item, path, self.remarks))
        return found

    def number(self, name: str, *, least: int) -> int | None:
        """A field that is an integer of at least so much."""
        value = self.take(name, int)
        if value is not None and value < least:
            raise InvalidError(f"must be at least {least}, not {value}", path=self.at(name))
        return value

    def ignore(self, *names: str) -> None:
        """Fields without a meaning for the job."""
        self.known += names

    def remark(self, name: str, text: str) -> None:
        """Say of a field, if it is set, what becomes of it."""
        self.known.append(name)
        if self.data.get(name) not in (None, {}, [], ""):
            self.remarks.append(Remark(self.at(name), text))

    def end(self) -> None:
        """Raises InvalidError for a field that was not taken."""
        for name in self.data:
            if name not in self.known:
                close = meant(str(name), self.known)
                raise InvalidError(
                    f"is not known{f': did you mean {close}?' if close else ''}", path=self.at(str(name))
                )


def metadata(of: Part) -> Json:
    """The metadata of the DIJob. Labels and annotations that a DIJob may not have are remarks."""
    out: Json = {name: value for name in ("name", "generateName", "namespace") if (value := of.take(name, str))}
    if not {"name", "generateName"} & out.keys():
        raise InvalidError("is missing: give the job a name", path=of.at("name"))
    for kind, check in (("labels", check_labels), ("annotations", check_annotations)):
        if kept := _allowed(of, kind, check):
            out[kind] = kept
    of.ignore(*_SERVERS)
    of.end()
    return out


def _allowed(of: Part, kind: str, check: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in (of.take(kind, dict) or {}).items():
        if key == "kubectl.kubernetes.io/last-applied-configuration":
            continue
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidError("keys and values must be text: put them in quotes", path=of.at(kind))
        try:
            check({key: value}, path=of.at(kind))
        except InvalidError as error:
            of.remarks.append(Remark(error.path, f"{error.message} (it is left out)"))
        else:
            kept[key] = value
        if key == "kueue.x-k8s.io/queue-name":
            of.remarks.append(
                Remark(f"{of.at(kind)}.{key}", "the queue of a DIJob is spec.queue; Kueue does not see it")
            )
    return kept


def template(of: Part, name: str, *, main: str) -> Json:
    """The pod template in a field, with the container `main` first, and without what diflow sets."""
    given = of.part(name)
    spec = given.part("spec")
    containers = spec.take("containers", list) or []
    at = next((i for i, one in enumerate(containers) if isinstance(one, dict) and one.get("name") == main), None)
    if at is None:
        raise InvalidError(f"has no container {main!r}, which does the work", path=spec.at("containers"))
    own = {**spec.data, "containers": [containers[at], *containers[:at], *containers[at + 1 :]]}
    for field_name, text in _SET_HERE.items():
        spec.remark(field_name, text)
        own.pop(field_name, None)
    if own.get("serviceAccountName") or own.get("serviceAccount"):
        text = (
            "is kept: it needs the right to create and patch workflowtaskresults.argoproj.io, as diflow-worker has it"
        )
        of.remarks.append(Remark(spec.at("serviceAccountName"), text))
    return {**given.data, "spec": own}


_SET_HERE: Final[Mapping[str, str]] = {
    "restartPolicy": "a replica that fails is started again as a new pod, as often as spec.backoffLimit says",
    "hostname": "host names are <job>-<task>-<index>, as DI_NODES has them",
    "subdomain": "the Service di of the namespace resolves the names of all replicas",
    "priorityClassName": "write spec.priority, normal or high",
    "schedulerName": "the allocator chooses the nodes, and kube-scheduler binds the pods",
}


def merged_env(container: Mapping[str, Any], more: Sequence[Any], *, path: str) -> list[Any]:
    """The variables of a container with others, which replace those of the same name. `path`: of the container. Raises
    InvalidError if they are no list."""
    env = container.get("env") or []
    if not isinstance(env, list):
        raise InvalidError(f"must be a list, not {describe(env)}", path=f"{path}.env")
    named = {item.get("name") for item in more if isinstance(item, dict)}
    return [*(item for item in env if not isinstance(item, dict) or item.get("name") not in named), *more]
