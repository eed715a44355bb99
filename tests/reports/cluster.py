"""A fake cluster whose kube-scheduler, kubelets and admission know what those of users know.

Pods have what the templates and patches of the rendered Workflow say of them: labels, tolerations, affinity, spread
constraints, host ports, volumes, claims of devices. Admission may add to them or refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from diflow.common import keys, quantities
from diflow.kube.kinds import CSI_NODE, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS, Kind
from tests.allocator.fakeargo import FakeCluster
from tests.reports import scheduler
from tests.reports.scheduler import World, claims_of, ports

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
_OF_PODS = (
    "tolerations", "affinity", "topologySpreadConstraints", "hostNetwork", "volumes", "schedulerName",
    "resourceClaims", "runtimeClassName", "priorityClassName",
)  # fmt: skip


class UsersCluster(FakeCluster):
    """What tests set: `mutate` changes each pod that is created, `forbid` refuses one with a text (as PodSecurity),
    `quota` is the most that the requests of a namespace's pods may add up to. `devices`: of each node, for
    ResourceClaims. `others`: the filters of schedulers of other names, which know no gangs either. `faulty`: nodes
    whose container runtime starts nothing; `full`: those whose kubelet rejects each pod, and its message."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.mutate: Callable[[Json], Json] = lambda pod: pod
        self.forbid: Callable[[Json], str] = lambda _: ""
        self.limits: quantities.Amounts = {}
        self.devices: dict[str, int] = {}
        self.others: dict[str, scheduler.Filter] = {}
        self.silent_schedulers: set[str] = set()
        """Names of schedulers that do not run."""
        self.faulty: set[str] = set()
        self.full: dict[str, str] = {}
        self.pulls: dict[str, float] = {}
        """Until when the image of a replica ("task-index") is pulled."""
        self.refused: dict[str, str] = {}
        """The last message of kube-scheduler about each pod that it has refused."""

    # --- what tests do ------------------------------------------------------------------------------------------------

    def machine(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        taints: list[Json] | None = None,
        zone: str = "",
        devices: int = 0,
        **allocatable: Any,
    ) -> None:
        """A node with these labels and taints, in a zone, with devices that ResourceClaims can be given."""
        self.node(name, **allocatable)
        self.devices[name] = devices
        more = {**(labels or {}), **({ZONE: zone} if zone else {})}

        def change(node: Json) -> Json:
            metadata = {**node["metadata"], "labels": {**node["metadata"]["labels"], **more}}
            return {**node, "metadata": metadata, "spec": {**node["spec"], "taints": taints or []}}

        self._change_node(name, change)

    def taint(self, name: str, key: str, effect: str = "NoSchedule", value: str = "") -> None:
        """Add a taint. Pods that do not tolerate one with NoExecute are evicted."""
        new = {"key": key, "effect": effect, **({"value": value} if value else {})}
        self._change_node(
            name, lambda node: {**node, "spec": {**node["spec"], "taints": [*(node["spec"].get("taints") or []), new]}}
        )
        for pod in self.pods() if effect == "NoExecute" else ():
            if pod["spec"].get("nodeName") == name and not scheduler.tolerates(pod, new):
                self.evict(pod["metadata"]["name"])

    def untaint(self, name: str, key: str) -> None:
        self._change_node(
            name,
            lambda node: {
                **node,
                "spec": {**node["spec"], "taints": [t for t in node["spec"].get("taints") or [] if t["key"] != key]},
            },
        )

    def claim(self, name: str, *modes: str, volume: str = "", storage: str = "", namespace: str = "default") -> None:
        """A PersistentVolumeClaim, bound to this volume or not at all."""
        spec: Json = {"accessModes": list(modes or ("ReadWriteMany",)), "storageClassName": storage}
        status = {"phase": "Bound" if volume else "Pending"}
        if volume:
            spec["volumeName"] = volume
        body = {"metadata": {"name": name}, "spec": spec, "status": status}
        self.api.add(PERSISTENT_VOLUME_CLAIM, body, namespace=namespace)

    def volume(self, name: str, *, zone: str = "", node: str = "", driver: str = "", key: str = ZONE) -> None:
        """A PersistentVolume that can be reached in one zone, or on one node."""
        spec: Json = {"csi": {"driver": driver, "volumeHandle": name}} if driver else {}
        if zone or node:
            line = {"key": "kubernetes.io/hostname" if node else key, "operator": "In", "values": [node or zone]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [line]}]}}
        self.api.add(PERSISTENT_VOLUME, {"metadata": {"name": name}, "spec": spec})

    def storage_class(self, name: str, *, waits: bool = True, driver: str = "", zones: tuple[str, ...] = ()) -> None:
        body: Json = {
            "metadata": {"name": name},
            "provisioner": driver,
            "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
        }
        if zones:
            body["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
        self.api.add(STORAGE_CLASS, body)

    def volume_limit(self, node: str, driver: str, count: int) -> None:
        drivers = [{"name": driver, "nodeID": node, "allocatable": {"count": count}}]
        self.api.add(CSI_NODE, {"metadata": {"name": node}, "spec": {"drivers": drivers}})

    def other_pod(self, name: str, node: str, *, labels: Mapping[str, str], spec: Json | None = None) -> None:
        """A pod of somebody else that runs on a node."""
        body = {
            "metadata": {"name": name, "uid": self._uid(name), "labels": dict(labels)},
            "spec": {"nodeName": node, "containers": [{"name": "x"}], **(spec or {})},
            "status": {"phase": "Running"},
        }
        self.api.add(POD, body)

    # --- admission ----------------------------------------------------------------------------------------------------

    def _create(self, pod: Json, namespace: str, template: Json, patch: Json) -> str:
        spec = {**pod["spec"], **{key: given[key] for given in (template, patch) for key in _OF_PODS if key in given}}
        main = {**spec["containers"][0], "ports": (template.get("container") or {}).get("ports") or []}
        if spec.get("hostNetwork"):
            main["ports"] = [{**port, "hostPort": port["containerPort"]} for port in main["ports"]]
        spec["containers"] = [main, *spec["containers"][1:]]
        made = self.mutate({**pod, "spec": spec})
        name = pod["metadata"]["name"]
        if why := self.forbid(made):
            return f'pods "{name}" is forbidden: {why}'
        if short := self._over_quota(made, namespace):
            return f'pods "{name}" is forbidden: exceeded quota: {short}'
        return super()._create(made, namespace, template, patch)

    def _over_quota(self, pod: Json, namespace: str) -> str:
        if not self.limits:
            return ""
        used: quantities.Amounts = {}
        for other in self.pods():
            if other["metadata"]["namespace"] == namespace:
                quantities.add(used, quantities.of_pod(other["spec"]))
        asked = quantities.of_pod(pod["spec"])
        over = [name for name, most in self.limits.items() if used.get(name, 0) + asked.get(name, 0) > most]
        return ", ".join(
            f"requested: {name}={asked.get(name, 0)}, used: {name}={used.get(name, 0)}, limited: {name}={most}"
            for name, most in self.limits.items()
            if name in over
        )

    # --- scheduler and kubelets ---------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        world = self._world()
        for pod in self.pods():
            spec = pod["spec"]
            if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in pod["metadata"]:
                continue
            if spec.get("schedulerName") in self.silent_schedulers:
                continue
            whys: dict[str, str] = {}
            for name, node in world.nodes.items():
                whys[name] = self._refusal(pod, node, world)
                if not whys[name]:
                    self._bind_in(world, pod, name)
                    break
            else:
                self._say(pod, scheduler.refusal(whys, len(world.nodes)))

    def _refusal(self, pod: Json, node: Json, world: World) -> str:
        name = node["metadata"]["name"]
        if node["status"]["conditions"][0]["status"] != "True":
            return "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
        if name in self.refuses:
            return "node(s) were refused"
        why = scheduler.refuses(pod, node, world)
        other = self.others.get(pod["spec"].get("schedulerName") or "")
        return why if why or other is None else other(pod, node, world)

    def _bind(self, pod: Json, node: str) -> None:
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._time()}
        super()._bind(pod, node)
        self._change_pod(pod, {**pod["status"], "conditions": [bound]})

    def _bind_in(self, world: World, pod: Json, node: str) -> None:
        asked = quantities.of_pod(pod["spec"])
        quantities.add(world.free[node], {resource: -amount for resource, amount in asked.items()})
        self._bind(pod, node)
        world.bound.append({**pod, "spec": {**pod["spec"], "nodeName": node}})
        for claim in claims_of(pod):
            self._bind_claim(world, pod["metadata"]["namespace"], claim, world.nodes[node])

    def _bind_claim(self, world: World, namespace: str, name: str, node: Json) -> None:
        """Make the volume of a claim that has waited for its first consumer, where that is."""
        found = world.claims[namespace, name]
        if found["spec"].get("volumeName"):
            return
        made = f"pv-{namespace}-{name}"
        driver = world.classes[found["spec"]["storageClassName"]].get("provisioner", "")
        self.volume(made, zone=node["metadata"]["labels"].get(ZONE, ""), driver=driver)
        spec = {**found["spec"], "volumeName": made}
        bound = {**found, "spec": spec, "status": {"phase": "Bound"}}
        self.api.add(PERSISTENT_VOLUME_CLAIM, bound, namespace=namespace)
        world.claims[namespace, name] = bound
        world.volumes[made] = self._every(PERSISTENT_VOLUME)[made]

    def _say(self, pod: Json, message: str) -> None:
        self.refused[pod["metadata"]["name"]] = message
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if pod["status"].get("conditions") != [said]:
            self._change_pod(pod, {**pod["status"], "conditions": [said]})

    def _world(self) -> World:
        nodes, free = self._free()
        spaces = (space for space in self.namespaces)
        claims = {
            (space, name): claim
            for space in spaces
            for name, claim in self._every(PERSISTENT_VOLUME_CLAIM, space).items()
        }
        return World(
            nodes=nodes,
            free=free,
            bound=[pod for pod in self.pods() if pod["spec"].get("nodeName")],
            claims=claims,
            volumes=self._every(PERSISTENT_VOLUME),
            classes=self._every(STORAGE_CLASS),
            csi=self._every(CSI_NODE),
            devices=self.devices,
        )

    def _every(self, kind: Kind, namespace: str | None = None) -> dict[str, Json]:
        with self.api.changed:
            return dict(self.api.objects.get(kind.path(namespace), {}))

    def _mounts(self, pod: Json) -> bool:
        """A volume that is ReadWriteOnce is attached to one node: others wait until its pods there are gone."""
        space = pod["metadata"]["namespace"]
        claims = self._every(PERSISTENT_VOLUME_CLAIM, space)
        alone = {c for c in claims_of(pod) if claims.get(c, {}).get("spec", {}).get("accessModes") == ["ReadWriteOnce"]}
        elsewhere = (
            other
            for other in self.pods()
            if other["metadata"]["uid"] in self._kubelet and other["spec"].get("nodeName") != pod["spec"]["nodeName"]
        )
        is_taken = any(alone & set(claims_of(o)) for o in elsewhere if o["metadata"]["namespace"] == space)
        return super()._mounts(pod) and not is_taken and not self._pulls(pod)

    def _pulls(self, pod: Json) -> bool:
        labels = pod["metadata"].get("labels") or {}
        rank = pod["metadata"]["annotations"].get(keys.TASK_RANK)
        return self.time.now() < self.pulls.get(f"{labels.get(keys.TASK_NAME)}-{rank}", 0.0)

    def _run_pods(self) -> None:
        for pod in self.pods():
            node, uid = pod["spec"].get("nodeName") or "", pod["metadata"]["uid"]
            if self.pulls and uid in self._hung and not self._pulls(pod):
                del self._hung[uid]
            if node in self.full and uid not in self._kubelet:
                message = f"Pod was rejected: {self.full[node]}"
                self._change_pod(pod, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message})
        super()._run_pods()

    def _starts(self, pod: Json) -> Any:
        found = super()._starts(pod)
        if pod["spec"]["nodeName"] in self.faulty:
            return replace(found, ends=found.started, code=128, reason="StartError")
        return found

    def _look_at_nodes(self) -> None:
        super()._look_at_nodes()
        for node in self._every(NODE):
            taken = [port for pod in self.pods() if pod["spec"].get("nodeName") == node for port in ports(pod)]
            if len(taken) != len(set(taken)):
                self._note(f"two pods on {node} have one host port: {sorted(taken)}")
