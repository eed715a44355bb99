"""What `kubectl apply -k manifests/allocator` puts into a cluster, as plain data, and whom its RBAC allows what."""

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
    """What a request needs: `space` is EVERYWHERE, or the only namespace; `name` is ANY, or the only object."""

    verb: str
    group: str
    resource: str
    space: str
    name: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The least that a rule can be made of: one verb on one resource, in `space`, on `name`."""

    verb: str
    group: str
    resource: str
    space: str
    name: str

    def allows(self, use: Use) -> bool:
        """As the API server judges it."""
        return (
            (self.verb, self.group, self.resource) == (use.verb, use.group, use.resource)
            and self.space in (EVERYWHERE, use.space)
            and self.name in (ANY, use.name)
        )


def needed(request: Request) -> Use:
    """The right that a request needs: how the API server reads it before it asks RBAC."""
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
        # A list of a single object by its name is allowed to whoever may list that name.
        field = request.query.get("fieldSelector", "")
        name = field.removeprefix("metadata.name=") if field.startswith("metadata.name=") and "," not in field else ANY
    else:
        verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]
    return Use(verb, group, resource, space, name)


def granted(account: str, folder: Path = FOLDER) -> set[Grant]:
    """All that the manifests allow an account of the allocator's namespace."""
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


def everybody() -> set[Grant]:
    """What the manifests allow to all who are logged in."""
    (role,) = [o for o in objects() if o["kind"] == "Role" and o["metadata"]["namespace"] == "kube-public"]
    return set(_grants(role["rules"], "kube-public"))


def _grants(rules: Iterable[Json], space: str) -> Iterator[Grant]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [ANY]):
                        yield Grant(verb, group, resource, space, name)
