"""Topology: gangs in racks and blocks, under each policy, on a cluster of 4 racks with 4 nodes of 8 GPUs each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.domains import MOST_TRIED
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import ADMIT, KEEP, WAIT, Plan, make_plan
from diflow.allocator.model.reasons import KEPT, TooBig
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.topology import MOST_LEVELS, Level, domains, level_of, parse_levels
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.waiting import Feasibility, reserve
from diflow.allocator.reasons import reason_texts
from diflow.common.errors import InvalidError
from diflow.common.predicates import Where
from tests.policies.generators import snapshots

GPU = "nvidia.com/gpu"
LEVELS = parse_levels("block,rack")
POLICIES = ("fit", "fair", "goodput", "fair+goodput")


def node(rack: int, index: int, *, used: int = 0, gpus: int = 8, labelled: bool = True) -> NodeView:
    labels = {"block": f"b{rack // 2}", "rack": f"r{rack}"} if labelled else {}
    return NodeView(f"n{rack}{index}", {GPU: gpus}, foreign={GPU: used} if used else {}, labels=labels)


def nodes(used: dict[str, int] | None = None) -> list[NodeView]:
    return [node(r, i, used=(used or {}).get(f"n{r}{i}", 0)) for r in range(4) for i in range(4)]


def gang(
    name: str,
    replicas: int,
    *,
    most: int = 0,
    gpus: int = 8,
    required: str = "",
    placed: Sequence[str] = (),
    preemptible: bool = False,
    priority: int = 0,
    created: float = 900.0,
    queue: str = "default",
) -> JobView:
    counts = {n: placed.count(n) for n in placed}
    return JobView(
        name,
        (RoleView("worker", {GPU: gpus}, replicas, most or replicas, most or replicas),),
        required=required,
        placed={"worker": counts} if placed else {},
        preemptible=preemptible,
        priority=priority,
        created_seconds=created,
        started_seconds=created if placed else None,
        changed_seconds=created if placed else None,
        queue=queue,
    )


def cluster(
    jobs: Sequence[JobView],
    given: Sequence[NodeView] | None = None,
    *,
    levels: Sequence[Level] = LEVELS,
    queues: Sequence[QueueView] = (),
) -> Snapshot:
    return build(nodes() if given is None else given, jobs, queues, now_seconds=1000.0, levels=levels)


def placed(snapshot: Snapshot, plan: Plan, name: str) -> dict[str, int]:
    mine = snapshot.role_job[plan.role] == snapshot.job_names.index(name)
    out: dict[str, int] = {}
    for n, c in zip(plan.node[mine].tolist(), plan.count[mine].tolist(), strict=True):
        out[snapshot.node_names[n]] = out.get(snapshot.node_names[n], 0) + c
    return out


def racks(snapshot: Snapshot, plan: Plan, name: str) -> set[str]:
    return {n[:2] for n in placed(snapshot, plan, name)}


def decided(policy: str, snapshot: Snapshot) -> Plan:
    plan = load_policy(policy).optimize(snapshot)
    assert not faults(snapshot, plan)
    return plan


def why(snapshot: Snapshot, plan: Plan, name: str) -> str:
    return reason_texts.text(snapshot, plan, snapshot.job_names.index(name)).partition(": ")[2]


# -- the levels --


def test_levels_are_read_from_a_text() -> None:
    text = " block = cloud.google.com/gce-topology-block , rack=topology.kubernetes.io/rack,host"
    assert parse_levels(text) == (
        Level("block", "cloud.google.com/gce-topology-block"),
        Level("rack", "topology.kubernetes.io/rack"),
        Level("host", "host"),
    )
    assert parse_levels("") == parse_levels(" ") == ()
    assert parse_levels("region,zone") == (
        Level("region", "topology.kubernetes.io/region"),
        Level("zone", "topology.kubernetes.io/zone"),
    )
    assert parse_levels("cloud.provider.com/topology-rack")[0].label == "cloud.provider.com/topology-rack"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (",", "'' is no level"),
        ("rack=", "'rack=' is no level"),
        ("=rack", "'=rack' is no level"),
        ("a b", "'a b' is no level"),
        ("rack=a/b/c", "is no level"),
        ("x" * 64, "is no level"),
        ("a" * 254 + "/x", "is no level"),
        ("rack,rack", "'rack' and 'rack' have the same name or label"),
        ("block=rack,rack", "the same name or label"),
        (",".join(f"l{i}" for i in range(MOST_LEVELS + 1)), f"has 9 levels, at most {MOST_LEVELS}"),
        ("x," * 3000, "has 6,000 characters"),
        ("rack\n", "is no level"),
    ],
)
def test_an_invalid_text_of_levels_is_refused(text: str, told: str) -> None:
    if text == "rack\n":
        assert parse_levels(text) == (Level("rack", "rack"),), "space around a name does not count"
        return
    with pytest.raises(InvalidError, match=told.replace("(", "\\(")):
        parse_levels(text)


def test_a_level_is_named_by_its_name_or_its_label() -> None:
    levels = parse_levels("block,rack=topology.kubernetes.io/rack")
    assert [level_of(name, levels) for name in ("block", "rack", "topology.kubernetes.io/rack", "row")] == [0, 1, 1, -1]


def test_domains_are_identified_by_the_labels_of_all_wider_levels() -> None:
    labels = [{"block": "a", "rack": "1"}, {"block": "b", "rack": "1"}, {"block": "a", "rack": "2"}, {"block": "a"}, {}]
    of_node, names = domains(LEVELS, [*labels, {"block": "a", "rack": ""}, {"rack": "1"}, {"rack": "1"}])
    assert names == ("a", "b", "a/1", "2", "b/1")
    assert of_node.tolist() == [[0, 1, 0, 0, -1, 0, -1, -1], [2, 4, 3, -1, -1, -1, -1, -1]]


# -- the smallest domain that holds a gang --


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_that_fits_in_one_rack_is_in_one_rack(policy: str) -> None:
    # Without the topology it would take the nodes that come first: two in rack 0, one in rack 1.
    s = cluster([gang("job", 3)], nodes({"n00": 8, "n01": 8, "n10": 8, "n11": 8, "n20": 4}))
    assert racks(s, decided(policy, s), "job") == {"n2"} or racks(s, decided(policy, s), "job") == {"n3"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_that_fits_in_no_rack_is_in_one_block_and_else_anywhere(policy: str) -> None:
    used = {f"n{r}{i}": 8 for r, i in ((0, 0), (0, 1), (1, 0), (2, 0), (3, 0))}
    s = cluster([gang("job", 6)], nodes(used))
    assert racks(s, decided(policy, s), "job") == {"n2", "n3"}
    s = cluster([gang("job", 7)], nodes(used))
    assert len(placed(s, decided(policy, s), "job")) == 7


@pytest.mark.parametrize("policy", POLICIES)
def test_of_the_racks_that_hold_a_gang_the_fullest_is_chosen(policy: str) -> None:
    s = cluster([gang("job", 2)], nodes({"n20": 8, "n21": 8, "n10": 8}))
    assert racks(s, decided(policy, s), "job") == {"n2"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_of_two_roles_is_in_one_rack(policy: str) -> None:
    roles = (RoleView("learner", {GPU: 8}, 1, 1, 1), RoleView("actor", {GPU: 4}, 4, 4, 4))
    s = cluster([JobView("job", roles, created_seconds=900.0)], nodes({"n00": 8, "n01": 8, "n10": 8}))
    assert racks(s, decided(policy, s), "job") == {"n1"}


def test_a_job_that_may_grow_starts_where_it_can_reach_its_desired_size() -> None:
    s = cluster([gang("job", 1, most=4, preemptible=True)], nodes({"n00": 8, "n01": 8, "n10": 4}))
    for policy in ("fit", "fair"):
        assert placed(s, decided(policy, s), "job") in (
            {f"n2{i}": 1 for i in range(4)},
            {f"n3{i}": 1 for i in range(4)},
        )


@pytest.mark.parametrize("policy", ["fit", "fair"])
def test_growth_prefers_the_rack_where_the_job_is(policy: str) -> None:
    # The nodes of rack 0 come first and have less free capacity, and the growth goes to rack 2 all the same.
    s = cluster([gang("job", 1, most=3, placed=["n20"])], nodes({"n00": 4, "n01": 4, "n21": 8}))
    assert racks(s, decided(policy, s), "job") == {"n2"}
    s = cluster([gang("job", 1, most=6, placed=["n20"])], nodes({"n21": 8, "n00": 4}))
    assert placed(s, decided(policy, s), "job").keys() > {"n20", "n22", "n23"}
    assert racks(s, decided(policy, s), "job") == {"n2", "n3"}, "then the block"


def test_a_topology_whose_labels_no_node_has_changes_no_plan_of_fair() -> None:
    asked = load_policy("fair")
    for snapshot in snapshots(31, 150):
        bare = np.full((1, snapshot.nodes), -1, dtype=np.int64)
        other = replace(snapshot, level_names=("rack",), node_domain=bare)
        assert asked.optimize(other).to_bytes(other) == asked.optimize(snapshot).to_bytes(snapshot)


# -- required --


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_waits_until_one_rack_holds_it(policy: str) -> None:
    used = {f"n{r}{i}": 8 for r in range(4) for i in range(2)}
    s = cluster([gang("job", 3, required="rack")], nodes({**used, "n22": 0, "n20": 0}))
    assert racks(s, decided(policy, s), "job") == {"n2"}
    holder = gang("other", 1, placed=["n20"], required="rack")
    s = cluster([gang("job", 3, required="rack"), holder], nodes({**used, "n20": 0}))
    plan = decided(policy, s)
    assert placed(s, plan, "job") == {}
    assert why(s, plan, "job") == (
        "wait: waits for capacity: its gang needs 3 replicas at once and 2 fit now, each 8 nvidia.com/gpu; it needs 24 "
        "nvidia.com/gpu in one rack: r0 has 16 free and fits 2, r1 has 16 free and fits 2, r2 has 16 free and fits 2, "
        "1 other fits no more"
    )
    assert reason_texts.details(s, plan, 0)[1].startswith("asks for: 3 × worker of 8 nvidia.com/gpu, all in one rack;")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_larger_than_any_rack_never_starts(policy: str) -> None:
    s = cluster([gang("job", 5, required="rack"), gang("wide", 5, required="block")])
    plan = decided(policy, s)
    assert why(s, plan, "job").startswith(
        "wait: cannot start on the nodes that are there: its gang needs 5 replicas in one rack, and the largest takes 4"
    )
    assert racks(s, plan, "wide") in ({"n0", "n1"}, {"n2", "n3"})


def test_two_roles_that_fit_only_in_different_racks_never_start() -> None:
    big = [node(0, i) for i in range(4)]
    small = [NodeView(f"s{i}", {GPU: 1, "cpu": 64}, labels={"block": "b1", "rack": "r9"}) for i in range(4)]
    roles = (RoleView("learner", {GPU: 8}, 1, 1, 1), RoleView("actor", {"cpu": 8}, 4, 4, 4))
    s = cluster([JobView("job", roles, required="rack")], [*big, *small])
    reason = Feasibility(s).reason(0)
    assert isinstance(reason, TooBig)
    assert Feasibility(replace(s, job_required=np.array([-1]))).reason(0) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_level_that_the_cluster_does_not_have_is_named(policy: str) -> None:
    s = cluster([gang("job", 1, required="row"), gang("sane", 1)])
    plan = decided(policy, s)
    assert why(s, plan, "job") == (
        "wait: waits: spec.topology requires one 'row', and the topology of this cluster has only 'block', 'rack'; the "
        "administrator sets it with DIFLOW_ALLOCATOR_TOPOLOGY"
    )
    assert plan.action[1] == ADMIT, "that is the job's own trouble"
    s = cluster([gang("job", 1, required="rack")], levels=())
    assert "requires one 'rack', and this cluster has no topology" in why(s, decided(policy, s), "job")
    running = gang("job", 1, most=3, required="row", placed=["n00"], preemptible=True)
    s = cluster([running])
    assert decided(policy, s).action[0] == KEEP, "it keeps its place if the level goes away"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_without_the_label_is_in_no_rack(policy: str) -> None:
    loose = [node(0, i, labelled=False) for i in range(3)]
    s = cluster([gang("job", 2, required="rack")], [*loose, node(1, 0)])
    plan = decided(policy, s)
    assert placed(s, plan, "job") == {}
    s = cluster([gang("job", 2, required="rack"), gang("free", 2, created=950.0)], [*loose, node(1, 0), node(1, 1)])
    plan = decided(policy, s)
    assert racks(s, plan, "job") == {"n1"}
    s = cluster([gang("job", 1, required="rack")], loose)
    assert why(s, decided(policy, s), "job") == (
        "wait: cannot start now: its gang has to be in one rack, and no node has the label of that level"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_growth_of_a_job_that_requires_a_rack_ends_at_its_edge(policy: str) -> None:
    s = cluster([gang("job", 2, most=8, required="rack", placed=["n00", "n01"])], nodes({"n02": 8}))
    assert placed(s, decided(policy, s), "job") == {"n00": 1, "n01": 1, "n03": 1}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_whose_nodes_got_other_labels_keeps_its_place_and_does_not_grow(policy: str) -> None:
    s = cluster([gang("job", 2, most=8, required="rack", placed=["n00", "n10"])])
    plan = decided(policy, s)
    assert plan.action[0] == KEEP
    assert placed(s, plan, "job") == {"n00": 1, "n10": 1}


def test_a_job_that_lost_its_nodes_is_placed_again_in_one_rack() -> None:
    """The standing of a preemptible job that was displaced has no places; its pods in the picture are gone."""
    broken = gang("job", 3, required="rack", placed=["n00", "n01"], preemptible=True)
    s = cluster([broken], nodes({"n02": 8, "n03": 8}))
    plan = decided("fit", s)
    assert len(racks(s, plan, "job")) == 1
    assert sum(placed(s, plan, "job").values()) == 3


def test_a_job_that_is_resized_by_goodput_stays_in_one_rack() -> None:
    jobs = [gang(f"j{i}", 1, most=8, gpus=4, required="rack", preemptible=True, created=float(i)) for i in range(6)]
    s = cluster(jobs)
    plan = decided("goodput", s)
    assert all(len(racks(s, plan, f"j{i}")) == 1 for i in range(6))


# -- preemption, reclaim, reservation --


def victims(plan: Plan, snapshot: Snapshot) -> set[str]:
    lost = np.bincount(snapshot.held_role, snapshot.held_count, snapshot.roles) > np.bincount(
        plan.role, plan.count, snapshot.roles
    )
    return {snapshot.job_names[j] for j in np.flatnonzero(snapshot.jobs_of(lost)).tolist()}


def full(queue: str = "default") -> list[JobView]:
    """One preemptible job on each node but one of rack 3, all of one age and priority."""
    places = [f"n{r}{i}" for r in range(4) for i in range(4) if (r, i) != (3, 3)]
    return [gang(f"v{p}", 1, placed=[p], preemptible=True, created=500.0, queue=queue) for p in places]


def test_fit_stops_jobs_of_one_rack_only_and_no_more_than_it_needs() -> None:
    s = cluster([gang("high", 3, required="rack", priority=1), *full()])
    plan = decided("fit", s)
    assert racks(s, plan, "high") == {"n3"}
    assert len(victims(plan, s)) == 2, "one node of rack 3 is free"
    assert {name[:3] for name in victims(plan, s)} == {"vn3"}


def test_fit_shrinks_jobs_of_one_rack_only() -> None:
    wide = [gang(f"w{i}", 1, most=4, placed=[f"n{r}{i}" for r in range(4)], preemptible=True) for i in range(4)]
    s = cluster([gang("job", 2, required="rack"), *wide])
    plan = decided("fit", s)
    assert len(racks(s, plan, "job")) == 1
    assert len(victims(plan, s)) == 2
    assert all(len(placed(s, plan, f"w{i}")) >= 3 for i in range(4))


def test_fair_reclaims_in_one_rack_only_and_no_more_than_it_needs() -> None:
    queues = [QueueView("rich"), QueueView("poor")]
    s = cluster([gang("job", 3, required="rack", queue="poor"), *full("rich")], queues=queues)
    plan = decided("fair", s)
    assert racks(s, plan, "job") == {"n3"}
    assert {name[:3] for name in victims(plan, s)} == {"vn3"}
    assert len(victims(plan, s)) == 2


def test_fair_preempts_by_priority_in_one_rack_only() -> None:
    s = cluster([gang("high", 4, required="rack", priority=1), *full()])
    plan = decided("fair", s)
    assert racks(s, plan, "high") == {"n3"}
    assert len(victims(plan, s)) == 3


def test_no_job_is_stopped_if_no_rack_could_hold_the_gang_afterwards() -> None:
    firm = [replace(job, preemptible=job.name[3] != "0") for job in full()]
    for policy in ("fit", "fair"):
        s = cluster([gang("high", 4, required="rack", priority=1), *firm])
        plan = decided(policy, s)
        assert not victims(plan, s), "in each rack a job may not be stopped"
        assert plan.action[s.job_names.index("high")] == WAIT


@pytest.mark.parametrize("required", ["", "rack"])
def test_capacity_is_reserved_in_one_rack(required: str) -> None:
    s = cluster([gang("job", 3, required=required, created=0.0)], nodes({f"n{r}0": 8 for r in range(4)} | {"n11": 2}))
    ledger = Ledger(s)
    kept = reserve(ledger, 0)
    assert sum(int(amount[:, 0].sum()) for _, amount in kept) == 24
    chosen = {s.node_names[n][:2] for on, _ in kept for n in on.tolist()}
    assert len(chosen) == 1 or not required
    ledger = Ledger(cluster([gang("job", 5, required="rack", created=0.0)]))
    assert reserve(ledger, 0) == [], "no rack could hold it"


def two_roles(head: int, workers: int, required: str) -> JobView:
    """A gang of `head` and `workers` replicas of 8 GPUs each, in two roles."""
    roles = (RoleView("head", {GPU: 8}, head, head, head), RoleView("worker", {GPU: 8}, workers, workers, workers))
    return JobView("job", roles, required=required, created_seconds=900.0)


def test_capacity_is_reserved_in_a_rack_that_could_hold_all_roles_and_nothing_otherwise() -> None:
    """All racks are full, and rack 1 alone has four nodes: in the others two nodes are used by others."""
    used = {f"n{r}{i}": 8 for r in (0, 2, 3) for i in (0, 1)}
    holds = [gang(f"b{r}{i}", 1, placed=[f"n{r}{i}"]) for r in range(4) for i in range(4) if f"n{r}{i}" not in used]
    ledger = Ledger(cluster([*holds, two_roles(1, 3, "rack")], nodes(used)))
    job = ledger.snapshot.job_names.index("job")
    assert [chosen.tolist() for chosen, _ in reserve(ledger, job)] == [[4], [4, 5, 6]]
    for required in ("", "rack"):
        ledger = Ledger(cluster([two_roles(1, 99, required)]))
        free = ledger.free.copy()
        assert reserve(ledger, 0) == [], "the second role can never fit"
        assert np.array_equal(ledger.free, free), "nothing stays reserved for the first"


@pytest.mark.parametrize("policy", ["fit", "fair"])
def test_a_gang_that_waits_for_a_rack_gets_one_although_small_jobs_keep_coming(policy: str) -> None:
    """The rack that lacks least is reserved: the small job starts elsewhere."""
    busy = [gang(f"b{r}", 1, placed=[f"n{r}0"], created=100.0) for r in range(4)]
    small = gang("small", 1, created=999.0)
    s = cluster([gang("job", 4, required="rack", created=0.0), *busy, small], nodes({"n11": 8, "n21": 8, "n31": 8}))
    plan = decided(policy, s)
    assert racks(s, plan, "small").isdisjoint({"n0"}), "rack 0 lacks one node of four, the others two"
    assert placed(s, plan, "small")


# -- the parts --


def test_the_validator_refuses_a_gang_in_two_racks() -> None:
    s = cluster([gang("job", 2, required="rack")])
    for there, wrong in (([0, 4], ["job job would not be in one rack"]), ([0, 1], [])):
        plan = make_plan(
            s,
            "test",
            np.zeros(2, dtype=np.int64),
            np.array(there),
            np.ones(2, dtype=np.int64),
            reasons=[KEPT],
        )
        assert faults(s, plan) == wrong


def test_a_gang_of_two_roles_is_tried_in_the_domains_with_the_most_free_capacity() -> None:
    """In most racks each role fits by itself and both together do not: they share the only node."""
    tight = [NodeView(f"t{i:03}", {GPU: 2}, labels={"rack": f"t{i:03}"}) for i in range(3 * MOST_TRIED)]
    wide = [NodeView(f"w{i}", {GPU: 2}, labels={"rack": "wide"}) for i in range(2)]
    roles = (RoleView("a", {GPU: 2}, 1, 1, 1), RoleView("b", {GPU: 1}, 1, 1, 1))
    s = cluster([JobView("job", roles, required="rack")], [*tight, *wide], levels=parse_levels("rack"))
    for policy in POLICIES:
        assert placed(s, decided(policy, s), "job") == {"w0": 1, "w1": 1}


def test_where_a_job_may_run_and_its_rack_hold_together() -> None:
    fast = [replace(n, labels={**n.labels, "fast": "yes"}) for n in nodes() if n.name in ("n00", "n10", "n20", "n21")]
    slow = [n for n in nodes() if n.name not in ("n00", "n10", "n20", "n21")]
    where = Where(selector=(("fast", "yes"),))
    job = replace(gang("job", 2, required="rack"), roles=(RoleView("worker", {GPU: 8}, 2, 2, 2, where=where),))
    s = cluster([job], [*fast, *slow])
    for policy in POLICIES:
        assert placed(s, decided(policy, s), "job") == {"n20": 1, "n21": 1}
