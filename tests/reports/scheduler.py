"""kube-scheduler's filters, as the lab has them: why a pod may not be on a node, in Kubernetes' own words.

Written from Kubernetes' documentation, and not from what the allocator knows of these rules: where the two differ, a
gang that the allocator places is refused here, and a test fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diflow.common import quantities

Json = dict[str, Any]
_NO_SELECTOR: Json = {}


@dataclass
class World:
    """What is in the cluster when a pod is scheduled. `bound`: the live pods that have a node, which grows meanwhile.
    `devices`: those of each node that ResourceClaims can be given."""

    nodes: dict[str, Json]
    free: dict[str, quantities.Amounts]
    bound: list[Json]
    claims: dict[tuple[str, str], Json]
    volumes: dict[str, Json]
    classes: Mapping[str, Json]
    csi: Mapping[str, Json]
    devices: Mapping[str, int]

    def on(self, node: str) -> list[Json]:
        return [pod for pod in self.bound if pod["spec"]["nodeName"] == node]

    def label(self, pod: Json, key: str) -> str | None:
        """The label of the node of a bound pod."""
        return _labels(self.nodes.get(pod["spec"]["nodeName"], {})).get(key)


Filter = Callable[[Json, Json, World], str]
"""(pod, node, world) → why the pod may not be there, or ""."""


def refusal(whys: Mapping[str, str], nodes: int) -> str:
    """The message of the condition PodScheduled, from the reason of each node."""
    if not whys:
        return "no nodes available to schedule pods"
    said = ", ".join(sorted(f"{count} {why}" for why, count in Counter(whys.values()).items()))
    return f"0/{nodes} nodes are available: {said}. preemption: 0/{nodes} nodes are available: No preemption victims."


def refuses(pod: Json, node: Json, world: World) -> str:
    """The first filter that refuses the node, in its words; "" if none does."""
    return next((why for filter_ in FILTERS if (why := filter_(pod, node, world))), "")


def _unschedulable(_pod: Json, node: Json, _: World) -> str:
    return "node(s) were unschedulable" if node["spec"].get("unschedulable") else ""


def _taints(pod: Json, node: Json, _: World) -> str:
    for taint in node["spec"].get("taints") or []:
        if taint.get("effect") != "PreferNoSchedule" and not tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return ""


def tolerates(pod: Json, taint: Json) -> bool:
    """Whether the pod tolerates this taint."""
    return any(
        (not one.get("effect") or one["effect"] == taint.get("effect"))
        and (
            (one.get("operator") == "Exists" and one.get("key") in (None, "", taint["key"]))
            or (one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""))
        )
        for one in pod["spec"].get("tolerations") or []
    )


def _node_affinity(pod: Json, node: Json, _: World) -> str:
    spec = pod["spec"]
    required = (
        (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    fits = (spec.get("nodeSelector") or {}).items() <= _labels(node).items() and (
        not required or _any_term(required["nodeSelectorTerms"], node)
    )
    return "" if fits else "node(s) didn't match Pod's node affinity/selector"


def _any_term(terms: Iterable[Json], node: Json) -> bool:
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_holds(line, _labels(node)) for line in term.get("matchExpressions") or [])
        and all(_holds(line, {"metadata.name": node["metadata"]["name"]}) for line in term.get("matchFields") or [])
        for term in terms
    )


def _holds(line: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(line["key"]), line.get("values") or []
    match line["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise AssertionError(line)


def _fits(pod: Json, node: Json, world: World) -> str:
    free = world.free[node["metadata"]["name"]]
    short = [name for name, amount in quantities.of_pod(pod["spec"]).items() if free.get(name, 0) < amount]
    return ", ".join(f"Insufficient {name}" for name in sorted(short))


def _ports(pod: Json, node: Json, world: World) -> str:
    taken = {port for other in world.on(node["metadata"]["name"]) for port in ports(other)}
    return "node(s) didn't have free ports for the requested pod ports" if taken & set(ports(pod)) else ""


def ports(pod: Json) -> list[tuple[int, str]]:
    """The host ports of a pod with their protocol."""
    return [
        (port["hostPort"], port.get("protocol", "TCP"))
        for container in [*pod["spec"].get("containers", []), *pod["spec"].get("initContainers", [])]
        for port in container.get("ports") or []
        if port.get("hostPort")
    ]


def _claims(pod: Json, node: Json, world: World) -> str:
    name = node["metadata"]["name"]
    for claim in claims_of(pod):
        found = world.claims.get((pod["metadata"]["namespace"], claim))
        if found is None:
            return f'persistentvolumeclaim "{claim}" not found'
        modes, bound_to = found["spec"].get("accessModes") or [], found["spec"].get("volumeName")
        users = [o for o in world.bound if claim in claims_of(o) and _space(o) == _space(pod)]
        if "ReadWriteOncePod" in modes and users:
            return "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
        storage = world.classes.get(found["spec"].get("storageClassName") or "", {})
        if not bound_to:
            if storage.get("volumeBindingMode") != "WaitForFirstConsumer":
                return "pod has unbound immediate PersistentVolumeClaims"
            terms = [
                {"matchExpressions": [{**line, "operator": "In"} for line in one["matchLabelExpressions"]]}
                for one in storage.get("allowedTopologies") or []
            ]
            if terms and not _any_term(terms, node):
                return "node(s) didn't find available persistent volumes to bind"
            continue
        volume = world.volumes[bound_to]
        required = (volume["spec"].get("nodeAffinity") or {}).get("required")
        if required and not _any_term(required["nodeSelectorTerms"], node):
            return "node(s) had volume node affinity conflict"
    return _limits(pod, name, world)


def _limits(pod: Json, node: str, world: World) -> str:
    """The volume limits of a node, by driver: each volume counts once on it."""
    for driver in (world.csi.get(node) or {}).get("spec", {}).get("drivers") or []:
        most = (driver.get("allocatable") or {}).get("count")
        mine = _volumes_of(pod, driver["name"], world)
        there = set[str]().union(*(_volumes_of(other, driver["name"], world) for other in world.on(node)))
        if most is not None and mine - there and len(mine | there) > most:
            return "node(s) exceed max volume count"
    return ""


def _volumes_of(pod: Json, driver: str, world: World) -> set[str]:
    out = set()
    for claim in claims_of(pod):
        found = world.claims.get((_space(pod), claim))
        if found is None:
            continue
        bound_to = found["spec"].get("volumeName")
        if bound_to:
            if (world.volumes[bound_to]["spec"].get("csi") or {}).get("driver") == driver:
                out.add(bound_to)
        elif world.classes.get(found["spec"].get("storageClassName") or "", {}).get("provisioner") == driver:
            out.add(f"{_space(pod)}/{claim}")
    return out


def claims_of(pod: Json) -> list[str]:
    """The names of the claims that a pod mounts, with those that are made for it."""
    out = []
    for volume in pod["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            out.append(volume["persistentVolumeClaim"]["claimName"])
        elif "ephemeral" in volume:
            out.append(f"{pod['metadata']['name']}-{volume['name']}")
    return out


def _spread(pod: Json, node: Json, world: World) -> str:
    refused = "node(s) didn't match pod topology spread constraints"
    hard = [
        one
        for one in pod["spec"].get("topologySpreadConstraints") or []
        if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
    ]
    if any(one["topologyKey"] not in _labels(node) for one in hard):
        return f"{refused} (missing required label)"
    for one in hard:
        key = one["topologyKey"]
        selector = _with_keys(one.get("labelSelector"), one.get("matchLabelKeys") or [], pod)
        counts: dict[str, int] = {
            _labels(other)[key]: 0
            for other in world.nodes.values()
            if all(each["topologyKey"] in _labels(other) for each in hard) and _counts_for(one, pod, other, world)
        }
        for other in world.bound:
            domain = world.label(other, key)
            there = world.nodes.get(other["spec"]["nodeName"])
            if (
                there is not None
                and domain in counts
                and _counts_for(one, pod, there, world)
                and _space(other) == _space(pod)
                and "deletionTimestamp" not in other["metadata"]
                and _selects(selector, other)
            ):
                counts[domain] += 1
        least = min(counts.values(), default=0)
        if len(counts) < one.get("minDomains", 1):
            least = 0
        domain = _labels(node)[key]
        if counts.get(domain, 0) + int(_selects(selector, pod)) - least > one["maxSkew"]:
            return refused
    return ""


def _counts_for(constraint: Json, pod: Json, node: Json, world: World) -> bool:
    """Whether a node's pods count: by default if the pod's node affinity matches, whatever the taints."""
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and _node_affinity(pod, node, world):
        return False
    return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or not _taints(pod, node, world)


def _pod_affinity(pod: Json, node: Json, world: World) -> str:
    labels = _labels(node)
    for other in world.bound:
        for term in _terms(other, "podAntiAffinity"):
            domain = world.label(other, term["topologyKey"])
            if domain is not None and labels.get(term["topologyKey"]) == domain and _wants(term, other, pod):
                return "node(s) didn't satisfy existing pods anti-affinity rules"
    for term in _terms(pod, "podAntiAffinity"):
        key = term["topologyKey"]
        if key in labels and any(_wants(term, pod, o) and world.label(o, key) == labels[key] for o in world.bound):
            return "node(s) didn't match pod anti-affinity rules"
    wanted = _terms(pod, "podAffinity")
    hits = [other for other in world.bound if wanted and all(_wants(term, pod, other) for term in wanted)]
    is_first = not hits and all(_wants(term, pod, pod) for term in wanted)
    for term in wanted:
        key = term["topologyKey"]
        if key not in labels:
            return "node(s) didn't match pod affinity rules"
        if not is_first and not any(world.label(other, key) == labels[key] for other in hits):
            return "node(s) didn't match pod affinity rules"
    return ""


def _terms(pod: Json, kind: str) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return list(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or [])


def _wants(term: Json, owner: Json, other: Json) -> bool:
    """Whether a term of `owner` selects the pod `other`."""
    spaces = term.get("namespaces") or ([] if term.get("namespaceSelector") is not None else [_space(owner)])
    is_there = _space(other) in spaces or term.get("namespaceSelector") == {}
    selector = _with_keys(term.get("labelSelector"), term.get("matchLabelKeys") or [], owner)
    for key in term.get("mismatchLabelKeys") or []:
        if key in _labels(owner):
            lines = [*(selector or {}).get("matchExpressions", []), _line(key, "NotIn", _labels(owner)[key])]
            selector = {**(selector or {}), "matchExpressions": lines}
    return is_there and _selects(selector, other)


def _with_keys(selector: Json | None, names: Iterable[str], pod: Json) -> Json | None:
    lines = [_line(key, "In", _labels(pod)[key]) for key in names if key in _labels(pod)]
    if selector is None or not lines:
        return selector
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or []), *lines]}


def _line(key: str, operator: str, value: str) -> Json:
    return {"key": key, "operator": operator, "values": [value]}


def _selects(selector: Json | None, pod: Json) -> bool:
    if selector is None:
        return False
    labels = _labels(pod)
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        _holds(line, labels) for line in selector.get("matchExpressions") or []
    )


def _devices(pod: Json, node: Json, world: World) -> str:
    name = node["metadata"]["name"]
    asked = len(pod["spec"].get("resourceClaims") or [])
    used = sum(len(other["spec"].get("resourceClaims") or []) for other in world.on(name))
    return "cannot allocate all claims" if asked and asked + used > world.devices.get(name, 0) else ""


def _labels(obj: Json) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def _space(pod: Json) -> str:
    return str(pod["metadata"]["namespace"])


FILTERS: tuple[Filter, ...] = (
    _unschedulable, _taints, _node_affinity, _ports, _fits, _claims, _spread, _pod_affinity, _devices,
)  # fmt: skip
"""In kube-scheduler's order."""
