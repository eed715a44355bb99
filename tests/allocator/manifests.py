"""The objects of `kubectl apply -k manifests/allocator` as plain data, and the rights that their RBAC rules grant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kube.fakeapi import Request

Json = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "manifests" / "allocator"
EVERYWHERE = ""
ANY = ""


def objects(folder: Path = FOLDER) -> list[Json]:
    """All objects, in the order of the kustomization."""
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [obj for name in names for obj in yaml.safe_load_all((folder / name).read_text())]


def one(kind: str, name: str, folder: Path = FOLDER) -> Json:
    """One object."""
    (found,) = [o for o in objects(folder) if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


@dataclass(frozen=True, slots=True)
class Use:
    """The right that a request needs: `space` is EVERYWHERE or a namespace, `name` is ANY or an object."""

    verb: str
    group: str
    resource: str
    space: str
    name: str


@dataclass(frozen=True, slots=True)
class Grant:
    """One verb on one resource, in `space`, on `name`: the smallest part of a rule."""

    verb: str
    group: str
    resource: str
    space: str
    name: str

    def allows(self, use: Use) -> bool:
        """As the API server decides."""
        return (
            (self.verb, self.group, self.resource) == (use.verb, use.group, use.resource)
            and self.space in (EVERYWHERE, use.space)
            and self.name in (ANY, use.name)
        )


def needed(request: Request) -> Use:
    """The right that a request needs, as the API server derives it for RBAC."""
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    space = EVERYWHERE
    if rest[0] == "namespaces" and len(rest) > 2:
        space, rest = rest[1], rest[2:]
    resource, name = rest[0], rest[1] if len(rest) > 1 else ANY
    if len(rest) > 2:
        resource = f"{resource}/{rest[2]}"
    if request.method == "GET" and not name:
        verb = "watch" if request.query.get("watch") else "list"
        # A list with a field selector for one name needs the right to list that name alone.
        field = request.query.get("fieldSelector", "")
        name = field.removeprefix("metadata.name=") if field.startswith("metadata.name=") and "," not in field else ANY
    else:
        verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]
    return Use(verb, group, resource, space, name)


def granted(account: str, folder: Path = FOLDER) -> set[Grant]:
    """All rights that the manifests grant to a service account of the allocator's namespace."""
    every = objects(folder)
    roles = {(o["kind"], o["metadata"].get("namespace", EVERYWHERE), o["metadata"]["name"]): o for o in every}
    out: set[Grant] = set()
    for binding in every:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding") and any(
            _is(subject, account) for subject in binding["subjects"]
        ):
            ref, space = binding["roleRef"], binding["metadata"].get("namespace", EVERYWHERE)
            role = roles[ref["kind"], space if ref["kind"] == "Role" else EVERYWHERE, ref["name"]]
            out.update(_grants(role["rules"], space))
    return out


def _is(subject: Json, account: str) -> bool:
    return subject["kind"] == "ServiceAccount" and (subject["namespace"], subject["name"]) == ("diflow-system", account)


def granted_in(space: str, folder: Path) -> set[Grant]:
    """The rights that the Roles of the manifests of one namespace grant, applied in `space`."""
    return {grant for o in objects(folder) if o["kind"] == "Role" for grant in _grants(o["rules"], space)}


def everybody() -> set[Grant]:
    """The rights that the manifests grant to all authenticated users."""
    (role,) = [o for o in objects() if o["kind"] == "Role" and o["metadata"]["name"] == "diflow-allocator-reader"]
    return set(_grants(role["rules"], "kube-public"))


def _grants(rules: Iterable[Json], space: str) -> Iterator[Grant]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [ANY]):
                        yield Grant(verb, group, resource, space, name)
