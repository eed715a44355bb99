"""What a tenant can write into its own Workflows, so that they cannot be read, or say what is not so."""

from __future__ import annotations

import json
from typing import Any

from diflow.common import keys
from diflow.workflows import render
from hostile.tenant import Attack, Tenant

Json = dict[str, Any]
_ANNOTATION_BYTES = 262_143
_LOOP_SECONDS = 0.1


def circle(tenant: Tenant) -> list[str]:
    made = tenant.create("circle", preemptible=True)
    named = {keys.CONTINUES: "circle", keys.CONTINUES_UID: made["metadata"]["uid"]}
    tenant.annotate("circle", named, {keys.PART: "999999999999999999", keys.CHAIN: "circle"})
    return ["circle"]


def digits(tenant: Tenant) -> list[str]:
    for name, rounds in (("digit", ["²", "1", "2"]), ("long-number", ["1", "9" * 4400])):
        made = tenant.create(name, preemptible=True)
        tenant.set(made, rounds=json.dumps(rounds, ensure_ascii=False))
        tenant.annotate(name, {keys.BOUNDS: '{"worker":{"min":1,"max":2}}'})
    return ["digit", "long-number"]


def moves(tenant: Tenant) -> list[str]:
    tenant.create("moves", preemptible=True)
    at = json.dumps({"round": "1", "nodes": {"worker": ["nowhere"]}, "moves": 10**30})
    tenant.annotate("moves", {keys.ALLOCATION: at})
    return ["moves"]


def sums(tenant: Tenant) -> list[str]:
    """More replicas and resources than a job may have, past every check of diflow's own commands."""
    body = render(tenant.job("sums", preemptible=True))
    manifest = json.loads(body["metadata"]["annotations"][keys.DIJOB])
    (task,) = manifest["spec"]["tasks"]
    tasks = [{**task, "name": f"task{i}", "replicas": 100_000} for i in range(40)]
    body["metadata"]["annotations"][keys.DIJOB] = json.dumps({**manifest, "spec": {**manifest["spec"], "tasks": tasks}})
    counts = {f"task{i}": 100_000 for i in range(40)}
    _set(body, granted=json.dumps({"1": counts}), replicas=json.dumps(counts))
    tenant.send(body)
    names = ["sums"]
    for number in range(20):
        body = render(tenant.job(f"invented-{number}"))
        manifest = json.loads(body["metadata"]["annotations"][keys.DIJOB])
        container = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        asked = {f"mallory.example/r{number}-{i}": "1" for i in range(250)}
        container["resources"] = {"requests": asked, "limits": asked}
        body["metadata"]["annotations"][keys.DIJOB] = json.dumps(manifest)
        tenant.send(body)
        names.append(f"invented-{number}")
    return names


def rubbish(tenant: Tenant) -> list[str]:
    for name, value in (("deep", "[" * 20_000), ("nan", '{"1":{"worker":NaN}}'), ("null", "null")):
        tenant.set(tenant.create(name, preemptible=True), granted=value)
    return ["deep", "nan", "null"]


def full(tenant: Tenant) -> list[str]:
    body = render(tenant.job("full", preemptible=True))
    annotations = body["metadata"]["annotations"]
    used = sum(len((key + value).encode()) for key, value in annotations.items())
    annotations["padding"] = "x" * (_ANNOTATION_BYTES - used - len("padding"))
    tenant.send(body)
    return ["full"]


def forged(tenant: Tenant) -> list[str]:
    """A suspended job that says of itself that it has every node."""
    body = render(tenant.job("forged", replicas=8, preemptible=True))
    places = json.dumps({"round": "1", "nodes": {"worker": ["a"] * 8}, "since": 4e9, "first": 1, "moves": 0})
    body["metadata"]["annotations"][keys.ALLOCATION] = places
    tenant.send({**body, "spec": {**body["spec"], "suspend": True}})
    return ["forged"]


def restless(tenant: Tenant) -> list[str]:
    """A Workflow that is changed all the time, so that a write to it is refused."""
    tenant.create("restless", preemptible=True)
    tenant.again(_LOOP_SECONDS, lambda number: tenant.annotate("restless", {"restless": str(number)}))
    return ["restless"]


def oldest(tenant: Tenant) -> list[str]:
    """Says that it was submitted before all others, and asks for more than there is."""
    body = render(tenant.job("oldest", replicas=40))
    body["metadata"]["annotations"][keys.SUBMITTED] = "1970-01-01T00:00:00Z"
    tenant.send(body)
    return ["oldest"]


def _set(body: Json, **values: str) -> None:
    for parameter in body["spec"]["arguments"]["parameters"]:
        parameter["value"] = values.get(parameter["name"], parameter["value"])


WRITTEN = (
    Attack("a", "a job continues itself, as part 999999999999999999", circle),
    Attack("b", "rounds that are no numbers, or have 4,400 digits", digits),
    Attack("c", "an allocation with 10^30 moves", moves),
    Attack("d", "4,000,000 replicas; 5,000 invented resources", sums),
    Attack("e", "20,000 brackets, NaN and null as granted", rubbish),
    Attack("f", "annotations filled to the limit", full),
    Attack("g", "a suspended job that says it has the nodes", forged),
    Attack("i", "a Workflow that is changed 10 times a second", restless, goes_on=True),
    Attack("j", "a job submitted in 1970", oldest),
)
