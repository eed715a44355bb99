"""Whatever a tenant writes into a Workflow, other jobs are placed, and it costs no more than an honest one.

Hypothesis generates the Workflows. `make test` tries few of them, DIFLOW_HOSTILE_EXAMPLES=100000 many.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diflow.allocator.model.plan import Action
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import NOT_OFFERED, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.plan.guard import guarded
from diflow.allocator.plan.inputs import Picture, picture
from diflow.allocator.policies.base import load_policy
from diflow.allocator.watch.cluster_state import assemble
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.common.limits import MOST_PORT_COLUMNS
from diflow.record.job import JobRecord
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord, pod_record_of
from diflow.workflows import render
from tests.allocator import lab
from tests.allocator.plan.calls import plan_writes, reconcile
from tests.allocator.values import NOW

Json = dict[str, Any]

EXAMPLES = int(os.environ.get("DIFLOW_HOSTILE_EXAMPLES", "40"))
POLICIES = {name: load_policy(name) for name in ("fit", "fair", "goodput", "fair+goodput")}
HOME = "home"
"""A node on which only the honest job may run, so that it always has free capacity."""
_DEDICATED = {"key": "dedicated", "operator": "Equal", "value": "honest", "effect": "NoSchedule"}
_NODE_NAME = "workflows.argoproj.io/node-name"


def _node(name: str, **spec: Any) -> NodeRecord:
    from diflow.record.node import node_record_of

    status = {
        "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return node_record_of(
        {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec, "status": status}
    )


NODES = (_node("a"), _node("b"), _node(HOME, taints=[{k: v for k, v in _DEDICATED.items() if k != "operator"}]))


def _honest() -> JobRecord:
    made = lab.task("w", replicas=2)
    spec = {**made.template["spec"], "tolerations": [_DEDICATED], "nodeSelector": {"kubernetes.io/hostname": HOME}}
    body = render(lab.job("honest", made.model_copy(update={"template": {"spec": spec}})))
    metadata = {"namespace": "honest", "uid": "h", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return planning_record_of({**body, "metadata": {**body["metadata"], **metadata}})


HONEST = _honest()

# --- what is written --------------------------------------------------------------------------------------------------

WORDS = ("", "²", "1", "2", "w", "x", "1/w/0", "9" * 4400, "1e400", "NaN", "[" * 3000, "null", "0001-01-01T00:00:00",
         "default", "a", HOME, "honest", "evil", "-1", "\x00", "é" * 40)  # fmt: skip
NAMES = ("round", "nodes", "since", "first", "moves", "w", "x", "1", "2", "min", "max", "action", "why", "time",
         "observed", "speed", "replicas", "gradParams", "perfParams", "norm", "var", "initBatchSize", "maxBatchSize",
         "localBszBounds", "progress")  # fmt: skip
numbers = st.one_of(st.integers(-5, 5), st.sampled_from([2**31, 2**63, 10**30, -(10**30), 10**6]), st.floats())
words = st.one_of(st.sampled_from(WORDS), st.text(max_size=6))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(NAMES), words), inner, max_size=5)
    ),
    max_leaves=14,
)
texts = st.one_of(words, values.map(json.dumps))
counts = st.one_of(st.integers(1, 4), numbers)
places = st.sampled_from(["a", "b", "", HOME, "gone", 5])
allocations = st.fixed_dictionaries(
    {
        "round": st.sampled_from(["1", "2", "²", 1]),
        "nodes": st.dictionaries(st.sampled_from(["w", "x"]), st.lists(places, max_size=6), max_size=2),
    },
    optional={"since": numbers, "first": numbers, "moves": numbers},
)  # fmt: skip
rounds = st.lists(st.sampled_from(["1", "2", "3", "²", "9" * 4400, "x", ""]), min_size=1, max_size=4)
parameters = st.fixed_dictionaries(
    {},
    optional={
        keys.PARAM_ROUNDS: st.one_of(texts, rounds.map(json.dumps)),
        keys.PARAM_CURRENT: st.one_of(words, st.sampled_from(["1", "2", "²"])),
        keys.PARAM_GRANTED: st.one_of(
            texts,
            st.dictionaries(st.sampled_from(["1", "2", "²"]), st.dictionaries(st.just("w"), counts)).map(json.dumps),
        ),
        keys.PARAM_RELEASED: st.one_of(texts, st.lists(words, max_size=3).map(json.dumps)),
        keys.PARAM_INCARNATIONS: st.one_of(texts, st.dictionaries(st.just("1/w/0"), words).map(json.dumps)),
        keys.PARAM_REPLICAS: st.one_of(texts, st.dictionaries(st.just("w"), counts).map(json.dumps)),
        keys.PARAM_PROFILINGS: texts,
    },
)
annotated = st.fixed_dictionaries(
    {},
    optional={
        keys.ALLOCATION: st.one_of(allocations.map(json.dumps), texts),
        keys.DECISION: texts,
        keys.BOUNDS: st.one_of(
            texts,
            st.dictionaries(st.just("w"), st.fixed_dictionaries({"min": counts, "max": counts})).map(json.dumps),
        ),
        keys.SUBMITTED: words,
        keys.CONTINUES: st.sampled_from(["evil", "one", "gone", "honest"]),
        keys.CONTINUES_UID: st.sampled_from(["e", "h", ""]),
        keys.CONTINUED_IN: st.sampled_from(["evil", "one", "gone"]),
        keys.RESTARTS_BEFORE: words,
        keys.ROUNDS_BEFORE: words,
    },
)
quantities = st.one_of(
    st.sampled_from(["1", "100m", "1e3", "1e99", "9" * 60, "1E", "²", "", "-1", "1Gi", "99999Ei", 5, 0.5, True, None]),
    values,
)
resources = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "a.example/x", "hostport/80", NOT_OFFERED, "²"]),
    quantities,
    max_size=4,
)
containers = st.fixed_dictionaries(
    {"name": st.just("di-container"), "image": st.just("x")},
    optional={
        "resources": st.fixed_dictionaries({"requests": st.one_of(resources, values)}),
        "ports": st.lists(
            st.fixed_dictionaries(
                {"containerPort": st.just(80)}, optional={"hostPort": st.one_of(st.just(80), numbers)}
            ),
            max_size=3,
        ),
    },
)
lines = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["kubernetes.io/hostname", "²", ""]),
        "operator": st.sampled_from(["In", "Gt", "Lt", "Exists", "Like"]),
        "values": st.lists(words, max_size=2),
    },
)
terms = st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(lines, max_size=2), "matchFields": values})
required, preferred = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
affinities = st.fixed_dictionaries(
    {"nodeAffinity": st.fixed_dictionaries({}, optional={
        required: st.fixed_dictionaries({"nodeSelectorTerms": st.lists(terms, max_size=2)}),
        preferred: st.lists(st.fixed_dictionaries({}, optional={"weight": numbers, "preference": terms}), max_size=2),
    })}
)  # fmt: skip
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, min_size=1, max_size=2)},
    optional={"affinity": affinities, "nodeSelector": st.dictionaries(words, words, max_size=2)},
)
jobs = st.fixed_dictionaries(
    {"tasks": st.lists(st.fixed_dictionaries(
        {"name": st.sampled_from(["w", "x"]), "type": st.just("none"),
         "template": st.fixed_dictionaries({"spec": specs})},
        optional={"replicas": counts, "minReplicas": counts, "maxReplicas": counts}), min_size=1, max_size=3)},
    optional={"priority": st.sampled_from(["high", "normal", "²"]), "queue": words, "preemptible": st.booleans(),
              "backoffLimit": numbers},
)  # fmt: skip
paths = st.one_of(
    words,
    st.builds(
        "evil.round({}:{}){}.w({}:{})({}).w({})".format,
        *[st.sampled_from(["0", "1", "²", "9" * 30, ""]) for _ in range(2)],
        st.sampled_from(["", "(1)", "(999999999)", "(²)"]),
        *[st.sampled_from(["0", "1", "1.2", "²", "999999999"]) for _ in range(4)],
    ),
)
tree = st.fixed_dictionaries(
    {"name": paths, "phase": st.sampled_from(["Running", "Failed", "Succeeded", "²", None])},
    optional={"type": st.sampled_from(["Pod", "Retry"]), "outputs": values, "hostNodeName": words},
)


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


statuses = st.one_of(
    st.fixed_dictionaries(
        {"nodes": st.dictionaries(words, tree, max_size=5)},
        optional={"phase": st.sampled_from(["Running", "²", "Failed"])},
    ),
    st.fixed_dictionaries({"compressedNodes": st.one_of(words, values.map(json.dumps).map(_packed))}),
    values,
)
workflows = st.fixed_dictionaries(
    {"parameters": parameters, "annotations": annotated},
    optional={"job": jobs, "status": statuses, "suspend": values, "shutdown": words, "labels": st.dictionaries(
        st.sampled_from([keys.QUEUE, keys.CHAIN, keys.PART]), words)},
)  # fmt: skip


BASE = {
    is_preemptible: render(lab.job("evil", lab.task("w", replicas=2), preemptible=is_preemptible))
    for is_preemptible in (False, True)
}


def hostile(made: Mapping[str, Any], *, is_preemptible: bool = True, name: str = "evil") -> Json:
    """A Workflow with all these edits."""
    body = BASE[is_preemptible]
    given = made.get("parameters", {})
    arguments = [{**p, "value": given.get(p["name"], p.get("value"))} for p in body["spec"]["arguments"]["parameters"]]
    metadata = {**body["metadata"], "name": name, "namespace": "evil", "uid": "e", "resourceVersion": "5"}
    metadata["annotations"] = {**metadata["annotations"], **made.get("annotations", {})}
    if "job" in made:
        head = {"apiVersion": "diengine.opendilab.org/v2alpha1", "kind": "DIJob", "metadata": {"name": "evil"}}
        metadata["annotations"][keys.DIJOB] = json.dumps({**head, "spec": made["job"]})
    metadata["labels"] = {**metadata["labels"], **made.get("labels", {})}
    spec = {**body["spec"], "arguments": {"parameters": arguments}}
    spec.update({field: made[field] for field in ("suspend", "shutdown") if field in made})
    return {**body, "metadata": metadata, "spec": spec, "status": made.get("status", {})}


def _pods(at: str) -> list[PodRecord]:
    """Pods of the hostile job: bound, pinned, and gated."""
    out = []
    specs: tuple[Json, ...] = (
        {"nodeName": "a"},
        {"nodeSelector": {"kubernetes.io/hostname": "b"}},
        {"schedulingGates": [{"name": keys.GATE}]},
    )
    for i, spec in enumerate(specs):
        metadata = {
            "name": f"p{i}", "namespace": "evil", "uid": f"p{i}", "annotations": {_NODE_NAME: at},
            "labels": {keys.OPERATOR: "x", "workflows.argoproj.io/workflow": "evil"},
            "ownerReferences": [{"kind": "Workflow", "uid": "e"}],
        }  # fmt: skip
        container = {"name": "main", "resources": {"requests": {"cpu": "1", "a.example/x": "1"}}}
        out.append(pod_record_of({"metadata": metadata, "spec": {**spec, "containers": [container]}}))
    return out


def _shown(*reads: JobRecord, pods: tuple[PodRecord, ...] = ()) -> Picture:
    there = assemble([HONEST, *reads], NODES, pods, (QueueView("default"),))
    capacity = FreeCapacity.of(there.nodes, there.pods, now_seconds=NOW)
    for job in there.jobs.values():
        reconcile_safely(job, capacity)
    return picture(there, capacity, now=NOW)


def reconcile_safely(job: Any, capacity: FreeCapacity) -> None:
    """As the daemon does: an error affects that job alone."""
    try:
        reconcile(job, capacity, now=NOW)
    except Exception:
        assert job.key != HONEST.key, "the honest job is not at fault"
        raise


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=workflows, is_preemptible=st.booleans(), path=paths)
def test_beside_any_workflow_another_job_is_placed_by_every_policy(made: Json, is_preemptible: bool, path: str) -> None:
    read = planning_record_of(hostile(made, is_preemptible=is_preemptible))
    assert read.key == "evil/evil"
    shown = _shown(read, pods=tuple(_pods(path)))
    s = shown.snapshot
    assert "evil/evil" not in shown.left_out, f"nothing should slip through: {shown.left_out}"
    at = s.job_names.index(HONEST.key)
    for name, policy in POLICIES.items():
        plan, trouble = guarded(policy.optimize, s, name=name, limit_seconds=60.0)
        assert trouble == ""
        assert Action(int(plan.action[at])) is Action.ADMIT, name
        free, use = plan_writes(shown, plan, now=NOW)
        assert any(write.job == HONEST.key for write in (*free, *use))


# --- what it costs ----------------------------------------------------------------------------------------------------


def _views(count: int, request: Callable[[int], Mapping[str, int]], **role: Any) -> list[JobView]:
    return [JobView(f"j{i}", (RoleView("w", request(i), **role),)) for i in range(count)]


def _cells(snapshot: Snapshot) -> int:
    import dataclasses

    arrays = (getattr(snapshot, field.name) for field in dataclasses.fields(snapshot))
    return sum(array.size for array in arrays if hasattr(array, "size"))


PLAIN_NODES = [NodeView(f"n{i}", {"cpu": 8000, "pods": 110}) for i in range(50)]


def test_invented_resources_make_the_tables_no_wider() -> None:
    honest = build(PLAIN_NODES, _views(20, lambda _: {"cpu": 1000}))
    invented = build(PLAIN_NODES, _views(20, lambda i: {"cpu": 1000, **{f"{i}.example/{k}": 1 for k in range(250)}}))
    assert invented.resources == ("cpu", NOT_OFFERED, "pods")
    assert _cells(invented) <= 1.5 * _cells(honest)
    assert "no node offers 0.example/0, 0.example/1, 0.example/10 and 247 more" in invented.job_refusal[0]


def test_host_ports_make_the_tables_wider_by_so_many_columns_at_most() -> None:
    jobs = [
        JobView(f"j{i}", (RoleView("w", {"cpu": 10}, host_ports=tuple(range(i * 100 + 1, i * 100 + 101))),))
        for i in range(50)
    ]
    snapshot = build(PLAIN_NODES, jobs)
    assert len(snapshot.resources) == 2 + MOST_PORT_COLUMNS
    few = build(PLAIN_NODES, _views(1, lambda _: {"cpu": 10}, host_ports=(8080,)))
    assert "hostport/8080" in few.resources


def test_with_shared_columns_no_two_pods_of_one_host_port_meet() -> None:
    views = [JobView(f"j{i}", (RoleView("w", {"cpu": 10}, host_ports=(1000 + i, 80)),)) for i in range(200)]
    snapshot = build(PLAIN_NODES, views)
    plan = load_policy("fit").optimize(snapshot)
    assert set(plan.count.tolist()) == {1}
    assert len(set(plan.node.tolist())) == len(plan.node) == len(PLAIN_NODES)


@pytest.mark.parametrize("queues", [(), (QueueView("default", cap={f"x/{i}": 1 for i in range(500)}),)])
def test_caps_of_what_no_node_offers_cost_no_column(queues: tuple[QueueView, ...]) -> None:
    assert len(build(PLAIN_NODES, _views(2, lambda _: {"cpu": 1}), queues).resources) == 2


def _many(count: int, *, replicas: int = 1, requests: Mapping[str, str] | None = None) -> Json:
    container = {"name": "di-container", "image": "x", "resources": {"requests": requests or {}}}
    task = {"type": "none", "replicas": replicas, "template": {"spec": {"containers": [container]}}}
    return {"tasks": [{"name": f"t{i}", **task} for i in range(count)]}


HUGE = _many(40, replicas=100_000)
INVENTED = _many(1, requests={f"x.example/{i}": "1" for i in range(250)})
GRANTED = json.dumps({"1": {"w": 100_000}})
COSTLY = {
    "4,000,000 replicas": {"job": HUGE},
    "250 invented resources": {"job": INVENTED},
    "100,000 granted": {"parameters": {keys.PARAM_GRANTED: GRANTED}},
    "100,000 asked for": {"parameters": {keys.PARAM_REPLICAS: '{"w": 100000}'}},
    "bounds up to 100,000": {"annotations": {keys.BOUNDS: '{"w": {"min": 1, "max": 100000}}'}},
}


@pytest.mark.parametrize("what", COSTLY)
def test_twenty_jobs_beyond_all_bounds_cost_less_than_twenty_honest_ones(what: str) -> None:
    def cost(reads: list[JobRecord]) -> int:
        tracemalloc.start()
        try:
            shown = _shown(*reads)
            for policy in POLICIES.values():
                plan = policy.optimize(shown.snapshot)
                plan_writes(shown, plan, now=NOW)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    held = [planning_record_of(hostile(COSTLY[what], name=f"evil-{i}")) for i in range(20)]
    honest = [planning_record_of(hostile({}, name=f"evil-{i}")) for i in range(20)]
    cost(honest)  # values that are computed once
    assert all(read.problem or read.complaint for read in held)
    assert sum(role.high for read in held for role in read.needs.roles) <= sum(
        role.high for read in honest for role in read.needs.roles
    )
    assert cost(held) <= 1.5 * cost(honest)


# --- the whole allocator ----------------------------------------------------------------------------------------------

ATTACKS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a round that is no number": ({"rounds": '["²","1","2"]', "replicas": '{"w":1}'}, {}),
    "a round of 4,400 digits": ({"rounds": json.dumps(["9" * 4400, "1"]), "replicas": '{"w":1}'}, {}),
    "moves beyond all measure": ({}, {"allocation": '{"round":"1","nodes":{"w":["n1"]},"moves":1' + "0" * 30 + "}"}),
    "moves as a float": ({}, {"allocation": '{"round":"1","nodes":{"w":["n1"]},"moves":1e300}'}),
    "an age of its own": ({}, {"submitted": "1970-01-01T00:00:00Z"}),
    "restarts without end": ({}, {"restarts-before": "9" * 5000}),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_stops_no_other_job(attack: str, policy: str) -> None:
    with lab.lab(policy=load_policy(policy)) as at:
        at.cluster.node("n1", cpu="8")
        at.cluster.submit(lab.job("evil", lab.task("w", replicas=2, min_replicas=1, max_replicas=3), preemptible=True))
        at.step()
        edited, annotated = ATTACKS[attack]
        at.cluster.edit("evil", **edited)
        at.cluster.annotate("evil", **annotated)
        at.cluster.submit(lab.job("honest", lab.task("w", replicas=2)))
        at.until(lambda: len(at.cluster.running("honest")) == 2, "the honest job runs")
        assert at.daemon is not None
        assert at.daemon.allocator.last_trouble == ""
