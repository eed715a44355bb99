"""What is bounded for each object, and was free for a tenant: work, memory, promises, and others' restarts."""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import suppress
from typing import Any

from diflow import DiflowError
from diflow.common import keys
from diflow.jobs.dijobs import DIJOB
from diflow.jobs.scale import scale
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.workflows import render
from hostile.tenant import Attack, Tenant

Json = dict[str, Any]
HOSTNAME = "kubernetes.io/hostname"
GPU = "nvidia.com/gpu"
LIFE = "kwok.x-k8s.io/duration"
_RESOURCE_QUOTA = Kind("ResourceQuota", "", "v1", "resourcequotas")
_FAIR = ("fair", "fair+goodput")
_MANY = 300
_ROUNDS = 10_000


def claims(tenant: Tenant) -> list[str]:
    """A pod on each node that asks for all of it, and that no scheduler binds; and copies of a job's pods."""
    tenant.create("claims")
    for at, node in enumerate(tenant.nodes):
        for number, labels in enumerate(({}, {keys.JOB: "claims", keys.OPERATOR: keys.OPERATOR_VALUE})):
            template = tenant.asks({"cpu": "1000", GPU: "4"})
            chosen = {**template["spec"].get("nodeSelector", {}), HOSTNAME: node}
            name = f"claim-{at}-{number}"
            tenant.pod(name, template, labels=labels, nodeSelector=chosen, schedulerName="nobody")
    return ["claims"]


def pod_level(tenant: Tenant) -> list[str]:
    """Pods whose containers ask for nothing, and that fill half of the nodes as pods."""
    for at, node in enumerate(tenant.nodes[::2]):
        template = tenant.asks({})
        chosen = {**template["spec"].get("nodeSelector", {}), HOSTNAME: node}
        tenant.pod(f"whole-{at}", template, nodeSelector=chosen, resources={"requests": {"cpu": "31500m"}})
    return []


def packed(tenant: Tenant) -> list[str]:
    """A status of 14,000 nodes that takes long to read, written again each second. Argo leaves it alone."""
    whole = "packed.round(0:" + "." * 900 + ")"
    nodes: Json = {f"p{i}": {"name": whole[: i + 13], "type": "DAG", "phase": "Running"} for i in range(900)}
    nodes |= {f"w{i}": {"name": f"{whole}.w({i})", "type": "Pod", "phase": "Running"} for i in range(14_000)}
    nodes["torn"] = {}
    text = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    body = render(tenant.job("packed", preemptible=True))
    body["metadata"]["labels"][keys.INSTANCE] = "nobody"
    tenant.send({**body, "status": {"phase": "Running", "compressedNodes": text}})
    tenant.again(1.0, lambda number: tenant.annotate("packed", {"packed": str(number)}))
    return ["packed"]


def toggles(tenant: Tenant) -> list[str]:
    """A job of four GPUs that ends after three seconds, every five: each could restart the elastic job of another."""
    brief = tenant.task(template=tenant.asks({"cpu": "1", GPU: "1"}, annotations={LIFE: "3s"}), replicas=4)
    tenant.send(render(tenant.job("toggle-0", tasks=(brief,))))
    tenant.again(5.0, lambda number: tenant.send(render(tenant.job(f"toggle-{number}", tasks=(brief,)))))
    return ["toggle-0"]


def reservation(tenant: Tenant) -> list[str]:
    """A gang of the whole cluster beside an endless job of the same tenant: it can never start."""
    tenant.create("endless")
    tenant.create("whole-cluster", replicas=4 * max(1, len(tenant.nodes)))
    return ["endless", "whole-cluster"]


def immune(tenant: Tenant) -> list[str]:
    """Jobs that cannot be stopped, on everything that another queue is guaranteed and does not use yet."""
    names = [f"immune-{number}" for number in range(4 * max(1, len(tenant.nodes)))]
    for name in names:
        tenant.create(name)
    return names


def wide(tenant: Tenant) -> list[str]:
    """Gangs of 40 tasks with 50 replicas each, of a high priority: many ways to make room for one."""
    task = tenant.asks({"cpu": "150m"})
    names = []
    for number in range(20):
        tasks = tuple(tenant.task(f"t{i}", template=task, replicas=50 if number < 5 else 20) for i in range(40))
        tenant.send(render(tenant.job(f"wide-{number}", tasks=tasks, priority="high")))
        names.append(f"wide-{number}")
    return names


def kept(tenant: Tenant) -> list[str]:
    """Workflows of a third of a megabyte each, with ten thousand rounds."""
    rounds = [str(number) for number in range(1, _ROUNDS + 1)]
    granted = {number: {"worker": 1} for number in rounds}
    names = [f"kept-{number}" for number in range(_MANY)]
    for name in names:
        vast = tenant.task(template=tenant.asks({"cpu": "900"}))
        body = render(tenant.job(name, tasks=(vast,), preemptible=True))
        for parameter in body["spec"]["arguments"]["parameters"]:
            given = {"rounds": rounds, "granted": granted}.get(parameter["name"])
            parameter["value"] = json.dumps(given, separators=(",", ":")) if given else parameter.get("value")
        with suppress(DiflowError):  # the first that is refused is an answer, the others are sent all the same
            tenant.send({**body, "spec": {**body["spec"], "suspend": True}})
    return names[:1]


def objects(tenant: Tenant) -> list[str]:
    """DIJob objects with 40,000 empty tolerations each."""
    spec = {**tenant.template["spec"], "tolerations": [{}] * 40_000}
    refused: DiflowError | None = None
    for number in range(170):
        body = {
            "apiVersion": DIJOB.api_version,
            "kind": DIJOB.name,
            "metadata": {"name": f"object-{number}", "namespace": tenant.namespace},
            "spec": {"tasks": [{"name": "worker", "replicas": 1, "template": {"spec": spec}}]},
        }
        try:
            tenant.cluster.create(DIJOB, body, namespace=tenant.namespace)
        except DiflowError as error:
            refused = error
    if refused is not None:
        raise refused
    return []


def rosters(tenant: Tenant) -> list[str]:
    """One replica more and one less of a job of 200, twice a second: each time all pods have another list of hosts."""
    small = tenant.task(template=tenant.asks({"cpu": "10m"}), replicas=200)
    tenant.send(render(tenant.job("rosters", tasks=(small,))))
    tenant.again(
        0.5,
        lambda number: scale("rosters", replicas=200 + number % 2, namespace=tenant.namespace, cluster=tenant.cluster),
    )
    return ["rosters"]


def bare(tenant: Tenant) -> list[str]:
    """Pods of the highest priority of diflow that kube-scheduler could make room for, with no job and no allocator."""
    template = tenant.asks({"cpu": "1", GPU: "4"})
    for at, node in enumerate(tenant.nodes[:4]):
        chosen = {**template["spec"].get("nodeSelector", {}), HOSTNAME: node}
        tenant.pod(f"bare-{at}", template, nodeSelector=chosen, priorityClassName="diflow-high")
    return []


def phantoms(tenant: Tenant) -> list[str]:
    """Gangs of the whole cluster, of a high priority, in a namespace that may have no pod: one after the other."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    tenant.cluster.create(_RESOURCE_QUOTA, quota, namespace=tenant.namespace)
    count = 4 * max(1, len(tenant.nodes))
    tenant.create("phantom-0", replicas=count, priority="high")
    tenant.again(5.0, lambda number: tenant.create(f"phantom-{number}", replicas=count, priority="high"))
    return ["phantom-0"]


def edited(tenant: Tenant) -> list[str]:
    """The request in a running gang's Workflow is edited, and a pod is made again with it: the job looks small."""
    made = tenant.create("edited", replicas=3)
    name = made["metadata"]["name"]

    def edit(_: int) -> None:
        pods = tenant.cluster.list_all(POD, namespace=tenant.namespace, labels=f"{keys.JOB}=edited")
        running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        if not running:
            return
        body = tenant.cluster.get(WORKFLOW, name, namespace=tenant.namespace)
        text = json.dumps(body["spec"]["templates"])
        for before, after in (
            ('\\"cpu\\": \\"1\\"', '\\"cpu\\": \\"1m\\"'),
            ('\\"cpu\\":\\"1\\"', '\\"cpu\\":\\"1m\\"'),
        ):
            text = text.replace(before, after)
        body["spec"]["templates"] = json.loads(text)
        tenant.cluster.replace(WORKFLOW, name, body, namespace=tenant.namespace)
        tenant.cluster.delete(POD, running[0]["metadata"]["name"], namespace=tenant.namespace)

    tenant.again(2.0, edit)
    return ["edited"]


PRICED = (
    Attack("k", "pods on each node that nobody binds", claims),
    Attack("l", "pods that fill nodes by pod-level resources", pod_level),
    Attack("m", "a packed status of 14,000 nodes, each second", packed, goes_on=True),
    Attack("n", "short jobs that make an elastic one restart", toggles, goes_on=True),
    Attack("o", "a gang that can never start, beside its owner's job", reservation),
    Attack("p", "jobs that cannot be stopped, on another's guarantee", immune, policies=_FAIR),
    Attack("q", "gangs of 40 tasks that take long to plan", wide),
    Attack("r", f"{_MANY} Workflows with {_ROUNDS:,} rounds", kept, is_real=True),
    Attack("s", "170 DIJobs with 40,000 tolerations", objects, is_real=True),
    Attack("t", "replicas of 200 toggled twice a second", rosters, goes_on=True),
    Attack("u", "bare pods of the priority diflow-high", bare, is_real=True),
    Attack("v", "gangs without end whose pods cannot exist", phantoms, goes_on=True),
    Attack("w", "a request that is edited while the job runs", edited, goes_on=True),
)
