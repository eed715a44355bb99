"""The memory of applications: what jobs leave in it, what new jobs get of it, and that each namespace has its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.allocator.remember.applications import MOST_READ, RUNNING_SECONDS, Applications
from diflow.allocator.remember.ended_jobs import ENDED, EndedJobs
from diflow.allocator.remember.namespace_records import PASS_SECONDS
from diflow.allocator.remember.priors import REFRESH_SECONDS, Priors
from diflow.allocator.watch import reports
from diflow.allocator.watch.node_pools import NodePools
from diflow.allocator.watch.records import planning_record_of, trim_node
from diflow.allocator.watch.selectors import MANAGED
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import LostLeadershipError
from diflow.common.names import pool_number
from diflow.kube.kinds import CONFIG_MAP, NODE, WORKFLOW
from diflow.kube.reflector import Reflector
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord
from diflow.record.namespace import applications
from diflow.record.namespace.applications import BINS, Application
from diflow.workflows.job import render
from tests.allocator.faults import Time, client, eventually
from tests.allocator.remember.test_ended_jobs import COMPLETED, Leader
from tests.kube.fakeapi import FakeApi, serving, status

BEGAN = 1_700_000_000.0
REPORT = {
    "observed": [[1, 1, 32, 0.1, 0.1], [1, 4, 32, 0.1, 0.12]],
    "initBatchSize": 32,
    "maxBatchSize": 1024,
    "localBszBounds": [8, 128],
    "gradParams": {"norm": 1.0, "var": 20.0},
    "progress": 0.95,
}


def workflow(
    name: str,
    *,
    namespace: str = "default",
    report: Any = None,
    ended: str = "",
    preemptible: bool = True,
    annotations: dict[str, str] | None = None,
    node: str = "",
    image: str = "r/rl:1",
    moves: int = 0,
    since: float = BEGAN,
) -> dict[str, Any]:
    """A Workflow as the API server has it. `ended`: its phase."""
    container = {"name": "di-container", "image": image, "command": ["train"], "resources": {"requests": {"cpu": "1"}}}
    task = Task(
        name="worker", replicas=1, min_replicas=1, max_replicas=8, template={"spec": {"containers": [container]}}
    )
    plain = Task(name="worker", replicas=1, template={"spec": {"containers": [container]}})
    job = DIJob(
        name=name,
        tasks=(task if preemptible else plain,),
        scheduling="gang",
        preemptible=preemptible,
        annotations=annotations or {},
    )
    body: dict[str, Any] = render(job)
    made = body["metadata"]
    metadata = {
        **made,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "creationTimestamp": "2023-11-14T22:00:00Z",
    }
    if node:
        allocation = Allocation("1", {"worker": (node,)}, since, BEGAN, moves)
        metadata["annotations"] = {**metadata["annotations"], keys.ALLOCATION: allocation.to_json()}
    if report is not None:
        text = report if isinstance(report, str) else json.dumps(report)
        for parameter in body["spec"]["arguments"]["parameters"]:
            if parameter["name"] == keys.PARAM_PROFILINGS:
                parameter["value"] = text
    if ended:
        metadata["labels"] = {**metadata["labels"], **COMPLETED}
        body["status"] = {"phase": ended, "finishedAt": "2023-11-14T23:00:00Z"}
    return {**body, "metadata": metadata}


def _read(obj: dict[str, Any]) -> dict[str, Any]:
    return {"read": planning_record_of(obj)}


class Scene:
    """The memory of a process that leads."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.time, self.leader = api, Time(), Leader()
        self.wall = BEGAN + 100.0
        self.memory = self.new()
        self.priors = Priors(self.memory.config_maps, self.memory._pools, clock=self.time.clock)

    def new(self) -> Applications:
        """That of a new process."""
        cluster, elector = client(self.api), self.leader
        clock = self.time.clock
        jobs = Reflector(cluster, WORKFLOW, everywhere=True, labels=MANAGED, trim=_read, clock=clock)
        nodes = Reflector(cluster, NODE, everywhere=True, trim=trim_node, clock=clock)
        recorder = EndedJobs(cluster, elector, clock=clock)  # type: ignore[arg-type]
        made = Applications(
            cluster,
            elector,  # type: ignore[arg-type]
            jobs=jobs,
            ended=recorder.workflows,
            pools=NodePools(nodes, "gpu"),
            clock=Clock(monotonic=self.time.now, wall=lambda: self.wall),
        )
        for reflector in (jobs, nodes, recorder.workflows, made.config_maps):
            reflector.start()
        return made

    def stop(self, memory: Applications | None = None) -> None:
        memory = memory or self.memory
        for reflector in (memory._jobs, memory._pools._nodes, memory._ended, memory.config_maps):
            reflector.stop()

    def prepare(self, *namespaces: str, text: str = "") -> None:
        for name in namespaces:
            data = {"data": {applications.APPLICATIONS_KEY: text}} if text else {}
            self.api.add(CONFIG_MAP, {"metadata": {"name": keys.APPLICATIONS}, **data}, namespace=name)

    def add(self, *workflows: dict[str, Any]) -> None:
        for made in workflows:
            self.api.add(WORKFLOW, made, namespace=made["metadata"]["namespace"])

    def learn(self, memory: Applications | None = None) -> int:
        """A pass of a memory whose caches have all that the server has."""
        memory = memory or self.memory
        kinds = ((memory._jobs, WORKFLOW, MANAGED), (memory._ended, WORKFLOW, ENDED), (memory._pools._nodes, NODE, ""))
        for reflector, kind, labels in kinds:
            eventually(lambda r=reflector, k=kind, ls=labels: r.synced and len(r.items()) == self._count(k, ls), "seen")  # type: ignore[misc]
        eventually(lambda: memory.config_maps.synced and self._is_current(memory), "the memories are seen")
        return memory.learn()

    def _count(self, kind: Any, labels: str) -> int:
        return len(client(self.api).list_all(kind, labels=labels, everywhere=True))

    def _is_current(self, memory: Applications) -> bool:
        there = client(self.api).list_all(CONFIG_MAP, everywhere=True, fields=f"metadata.name={keys.APPLICATIONS}")
        seen = memory.config_maps.items()
        return {(o["metadata"]["namespace"], o["metadata"]["resourceVersion"]) for o in there} == {
            (namespace, item["metadata"]["resourceVersion"]) for (namespace, _), item in seen.items()
        }

    def records(self, namespace: str = "default") -> dict[tuple[str, str], Application]:
        return applications.parse(self.text(namespace))

    def text(self, namespace: str = "default") -> str:
        return applications.text_of(self.api.objects[CONFIG_MAP.path(namespace)][keys.APPLICATIONS])

    def writes(self) -> int:
        return len(self.api.seen("PATCH", "/configmaps/"))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with serving() as api:
        made = Scene(api)
        yield made
        made.stop()


def only(records: dict[tuple[str, str], Application]) -> Application:
    (record,) = records.values()
    return record


def test_a_job_that_has_ended_teaches_the_memory_of_its_application(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded", annotations={keys.APPLICATION: "resnet"}, node="n1"))
    assert scene.learn() == 1
    record = scene.records()["resnet", ""]
    assert [shape[:2] for shape in record.shapes] == [(1, 1), (1, 4)]
    assert (record.jobs, record.batches.initial, record.batches.most) == (1, 32, 1024)
    assert record.noise[9] == pytest.approx(2.996, abs=1e-3)
    # 46:40 at the goodput of the newest observation: 4 x 32 samples in 0.12 s, worth 21 / 24 of 4 steps of 32.
    assert record.works[0] == pytest.approx(2800 * 4 * (21 / 24) / 0.12, rel=1e-3)
    assert scene.learn() == 0, "once"


def test_a_job_that_failed_teaches_its_speed_and_not_its_work(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Failed", node="n1"))
    scene.learn()
    assert (only(scene.records()).works, len(only(scene.records()).shapes)) == ((), 2)


@pytest.mark.parametrize(
    "made",
    [
        workflow("one", ended="Succeeded"),
        workflow("one", report="{", ended="Succeeded"),
        workflow("one", report={"observed": [[0, -1, "x", None, 5]]}, ended="Succeeded"),
        workflow("one", report=REPORT, ended="Succeeded", preemptible=False),
        {**workflow("one", report=REPORT, ended="Succeeded"), "spec": {"arguments": {"parameters": "nonsense"}}},
    ],
)
def test_a_job_that_has_shown_nothing_teaches_nothing(scene: Scene, made: dict[str, Any]) -> None:
    scene.prepare("default")
    scene.add(made)
    assert scene.learn() == 0
    assert scene.writes() == 0


def test_a_namespace_without_the_config_map_costs_no_request(scene: Scene) -> None:
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    assert scene.learn() == 0
    assert scene.api.seen("GET", "/workflows/one") == []
    assert scene.writes() == 0


def test_a_new_process_learns_nothing_twice(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.learn()
    again = scene.new()
    try:
        assert scene.learn(again) == 0
        assert only(scene.records()).jobs == 1
    finally:
        scene.stop(again)


def test_no_namespace_learns_from_another_one(scene: Scene) -> None:
    scene.prepare("default", "other", "third")
    bad = {**REPORT, "observed": [[1, 1, 32, 9.0, 9.0]]}
    scene.add(workflow("one", report=REPORT, ended="Succeeded", annotations={keys.APPLICATION: "resnet"}))
    scene.add(
        workflow("one", namespace="other", report=bad, ended="Succeeded", annotations={keys.APPLICATION: "resnet"})
    )
    assert scene.learn() == 2
    assert only(scene.records()).shapes[0][4] == 0.1
    assert only(scene.records("other")).shapes[0][4] == 9.0
    assert scene.records("third") == {}
    mine, theirs, none = (
        scene.priors.profile(read(workflow("two", namespace=space, annotations={keys.APPLICATION: "resnet"})), None)
        for space in ("default", "other", "third")
    )
    assert mine is not None
    assert theirs is not None
    assert none is None
    assert mine.prior is not None
    assert mine.prior.observations[0, 4] == 0.1


def read(made: dict[str, Any]) -> JobRecord:
    return planning_record_of({**made, "metadata": {**made["metadata"], "resourceVersion": "1"}})


def test_a_new_job_inherits_and_keeps_one_profile_while_nothing_changes(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.learn()
    job = read(workflow("two", image="r/rl:2"))
    first = scene.priors.profile(job, None)
    assert first is not None
    assert first.prior is not None
    assert len(first.observations) == 0
    assert len(first.prior.observations) == 2
    assert scene.priors.profile(job, None) is first, "the policy reads it once"
    own = reports.profile(json.dumps(REPORT))
    assert scene.priors.profile(job, own) is not first
    assert scene.priors.profile(read(workflow("two", image="r/other:2")), own) is own
    rigid = read(workflow("two", preemptible=False))
    assert rigid.needs.application == ""
    assert scene.priors.profile(rigid, None) is None


def test_a_changed_memory_is_read_again_after_some_minutes_and_a_new_application_at_once(scene: Scene) -> None:
    """Each change of it means a new fit for all jobs of the application."""
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.learn()
    job, other = read(workflow("two")), read(workflow("two", image="r/new:1"))
    first = scene.priors.profile(job, None)
    scene.add(workflow("three", report=REPORT, ended="Succeeded"))
    scene.learn()
    scene.time.move(PASS_SECONDS)
    assert scene.priors.profile(job, None) is first
    assert scene.priors.profile(other, None) is None
    scene.add(workflow("four", report=REPORT, ended="Succeeded", image="r/new:2"))
    scene.learn()
    scene.time.move(PASS_SECONDS)
    assert scene.priors.profile(other, None) is not None
    scene.add(workflow("five", report=REPORT, ended="Succeeded"))
    scene.learn()
    again = scene.priors.profile(job, None)
    scene.time.move(REFRESH_SECONDS)
    assert scene.priors.profile(job, None) is not again


def test_a_memory_that_is_deleted_is_forgotten_at_once_and_learned_again(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.learn()
    scene.api.remove(CONFIG_MAP, keys.APPLICATIONS)
    assert scene.learn() == 0
    assert scene.priors.profile(read(workflow("two")), None) is None
    scene.prepare("default")
    assert scene.learn() == 1
    assert only(scene.records()).jobs == 1


@pytest.mark.parametrize(
    "text", ["nonsense", "[" * 50_000, '{"name":"resnet","shapes":[[1,1,8,1e400,1,1]]}', "\x00" * 9]
)
def test_a_text_that_a_user_has_spoiled_stops_nothing(scene: Scene, text: str) -> None:
    scene.prepare("default", text=text)
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    assert scene.learn() == 1
    assert [record.jobs for record in scene.records().values() if record.shapes] == [1]


def test_pools_are_kept_apart_and_a_job_gets_the_one_where_it_is(scene: Scene) -> None:
    scene.prepare("default")
    for name, pool in (("n1", "a100"), ("n2", "t4")):
        scene.api.add(
            NODE, {"metadata": {"name": name, "labels": {"gpu": pool}}, "status": {"allocatable": {"cpu": "4"}}}
        )
    slow = {**REPORT, "observed": [[1, 1, 32, 0.5, 0.5]]}
    scene.add(workflow("one", report=REPORT, ended="Succeeded", node="n1"))
    scene.add(workflow("two", report=slow, ended="Succeeded", node="n2"))
    scene.learn()
    assert {pool for _, pool in scene.records()} == {"a100", "t4"}

    def step(node: str) -> float:
        profile = scene.priors.profile(read(workflow("new", node=node)), None)
        assert profile is not None
        assert profile.prior is not None
        return float(profile.prior.observations[0, 4])

    assert (step("n1"), step("n2")) == (0.1, 0.5)


def test_the_restart_of_a_running_job_is_measured_to_the_first_report_of_its_round(scene: Scene) -> None:
    scene.prepare("default")
    single = {**REPORT, "observed": [[1, 1, 32, 0.1, 0.1]]}
    scene.add(workflow("one", report=single, node="n1"))
    scene.learn()
    scene.wall = BEGAN + 500.0
    moved: dict[str, Any] = {"node": "n1", "moves": 1, "since": BEGAN + 500.0}
    scene.add(workflow("one", report=single, **moved))
    scene.learn()
    scene.wall = BEGAN + 547.0
    scene.add(workflow("one", report={**single, "progress": 0.5, "observed": [[1, 1, 64, 0.2, 0.2]]}, **moved))
    settle(scene, "one")
    scene.learn()
    scene.wall = BEGAN + 900.0
    scene.add(workflow("one", report=REPORT, ended="Succeeded", **moved))
    assert scene.learn() == 1
    assert only(scene.records()).restart_seconds == pytest.approx(47.0)
    assert only(scene.records()).noise[5] is not None, "what was noticed on the way is kept as well"


def settle(scene: Scene, name: str) -> None:
    """Wait until the cache has the newest version of the Workflow."""
    want = scene.api.objects[WORKFLOW.path("default")][name]["metadata"]["resourceVersion"]
    jobs = scene.memory._jobs
    eventually(lambda: jobs.items()["default", name]["read"].identity.version == want, "it is seen")


def test_a_job_that_runs_for_long_adds_what_no_job_has_shown(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT))
    assert scene.learn() == 1
    assert (only(scene.records()).jobs, len(only(scene.records()).shapes)) == (0, 2)
    more = {**REPORT, "observed": [*REPORT["observed"], [2, 8, 32, 0.1, 0.2]]}  # type: ignore[misc]
    scene.add(workflow("one", report=more))
    settle(scene, "one")
    assert scene.learn() == 0, "not with each report"
    scene.time.move(RUNNING_SECONDS)
    assert scene.learn() == 1
    assert len(only(scene.records()).shapes) == 3


def test_a_flood_of_ended_jobs_is_read_over_several_passes_and_delays_no_other_namespace(scene: Scene) -> None:
    scene.prepare("default", "other")
    scene.add(*[workflow(f"job-{i}", report=REPORT, ended="Succeeded") for i in range(2 * MOST_READ + 5)])
    scene.add(workflow("one", namespace="other", report=REPORT, ended="Succeeded"))
    for _ in range(4):
        scene.time.move(10.0)
        scene.learn()
        assert len(scene.api.seen("GET", "/workflows/")) <= 4 * MOST_READ + 8
        if scene.records("other"):
            break
    assert only(scene.records("other")).jobs == 1
    for _ in range(4):
        scene.time.move(10.0)
        scene.learn()
    assert only(scene.records()).jobs == 2 * MOST_READ + 5


def test_a_report_that_no_arithmetic_holds_keeps_no_namespace_from_learning(scene: Scene) -> None:
    """The quotient of these two was 0, whose logarithm ended the pass over all namespaces, each time."""
    scene.prepare("default", "other")
    spoiled = {**REPORT, "gradParams": {"norm": 1e18, "var": 1e-310}}
    scene.add(workflow("runs", report=spoiled), workflow("ended", report=spoiled, ended="Succeeded"))
    scene.add(workflow("one", namespace="other", report=REPORT, ended="Succeeded"))
    scene.learn()
    assert only(scene.records("other")).jobs == 1
    record = only(scene.records())
    assert record.jobs == 1
    assert record.noise == (None,) * BINS


@pytest.mark.parametrize("norm", [1e-310, 1e-30])
def test_gradient_noise_out_of_its_range_is_not_recorded(scene: Scene, norm: float) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report={**REPORT, "gradParams": {"norm": norm, "var": 1e18}}, ended="Succeeded"))
    scene.learn()
    assert only(scene.records()).noise == (None,) * BINS


def test_a_namespace_in_which_something_fails_keeps_no_other_from_learning(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.prepare("default", "other")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.add(workflow("one", namespace="other", report=REPORT, ended="Succeeded"))
    learned = applications.learned

    def failing(known: Application, lesson: Any, **given: Any) -> Application:
        if lesson.uid == "default-one":
            raise ValueError("no number")
        return learned(known, lesson, **given)

    monkeypatch.setattr(applications, "learned", failing)
    scene.learn()
    assert only(scene.records("other")).jobs == 1
    assert scene.records() == {}


def test_a_write_that_is_refused_loses_nothing(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.api.fail(
        status(409, "the object has been modified", reason="Conflict"), method="PATCH", path="/configmaps/", times=1
    )
    assert scene.learn() == 0
    scene.time.move(1000.0)
    assert scene.learn() == 1
    assert only(scene.records()).jobs == 1


def test_a_process_that_does_not_lead_any_more_writes_nothing(scene: Scene) -> None:
    scene.prepare("default")
    scene.add(workflow("one", report=REPORT, ended="Succeeded"))
    scene.leader.leads = False
    with pytest.raises(LostLeadershipError):
        scene.learn()
    assert scene.writes() == 0


def test_a_job_is_named_in_the_record_by_its_image_if_it_names_no_application() -> None:
    assert read(workflow("a")).needs.application == read(workflow("b", image="r/rl:9")).needs.application
    assert read(workflow("a")).needs.application.startswith("rl-")
    assert read(workflow("a", namespace="x")).needs.application != read(workflow("a")).needs.application


def _in_two_pools() -> dict[str, Any]:
    """A report of a job that has run in the pool t4, and then in a100."""
    t4, a100 = pool_number("t4"), pool_number("a100")
    rows = [[1, 1, 32, 0.4, 0.4, t4], [1, 2, 32, 0.4, 0.42, t4], [1, 1, 32, 0.1, 0.1, a100], [1, 4, 32, 0.1, 0.11, 77]]
    return {**REPORT, "observed": rows}


def _node(scene: Scene, name: str, pool: str) -> None:
    scene.api.add(NODE, {"metadata": {"name": name, "labels": {"gpu": pool}}, "status": {"allocatable": {"cpu": "8"}}})


def _read_after_learning(scene: Scene, job: str) -> JobRecord:
    """A job as the policy's side reads it, when it has the memory of what others have shown."""
    scene.learn()
    eventually(lambda: scene._is_current(scene.memory), "the memory is seen")
    read: JobRecord = next(item["read"] for (_, name), item in scene.memory._jobs.items().items() if name == job)
    return read


def test_what_a_job_has_shown_is_kept_for_the_pool_where_it_was_measured(scene: Scene) -> None:
    scene.prepare("default")
    _node(scene, "n1", "a100")
    _node(scene, "n2", "t4")
    scene.add(
        workflow(
            "one",
            report=_in_two_pools(),
            ended="Succeeded",
            annotations={keys.APPLICATION: "resnet"},
            node="n1",
        )
    )
    assert scene.learn() == 1
    records = scene.records()
    # The last row names a pool that the cluster does not have.
    assert {key: [shape[:2] for shape in record.shapes] for key, record in records.items()} == {
        ("resnet", "a100"): [(1, 1)],
        ("resnet", "t4"): [(1, 1), (1, 2)],
    }
    assert (len(records["resnet", "a100"].works), len(records["resnet", "t4"].works)) == (1, 0)
    assert scene.learn() == 0, "once"


def test_a_job_inherits_the_records_of_all_pools(scene: Scene) -> None:
    scene.prepare("default")
    _node(scene, "n1", "a100")
    _node(scene, "n2", "t4")
    scene.add(
        workflow("one", report=_in_two_pools(), ended="Succeeded", annotations={keys.APPLICATION: "r"}, node="n1"),
        workflow("two", annotations={keys.APPLICATION: "r"}, node="n2"),
    )
    read = _read_after_learning(scene, "two")
    profile = scene.priors.profile(read, None)
    assert profile is not None
    assert profile.prior is profile.priors[pool_number("t4")]
    assert set(profile.priors) == {pool_number("t4"), pool_number("a100")}
    assert profile.local_batches == {pool_number("a100"): 128}
    assert scene.priors.profile(read, None) is profile, "the same object while nothing changes"


def test_a_record_of_one_pool_is_of_that_pool_also_where_the_job_runs_there(scene: Scene) -> None:
    scene.prepare("default")
    _node(scene, "n1", "a100")
    _node(scene, "n2", "t4")
    scene.add(
        workflow("one", report=REPORT, ended="Succeeded", annotations={keys.APPLICATION: "r"}, node="n1"),
        workflow("two", annotations={keys.APPLICATION: "r"}, node="n1"),
    )
    read = _read_after_learning(scene, "two")
    profile = scene.priors.profile(read, None)
    assert profile is not None
    assert profile.priors == {pool_number("a100"): profile.prior}
    assert profile.local_batches == {}


def test_a_job_has_the_records_by_pool_as_soon_as_there_is_a_second_pool(scene: Scene) -> None:
    scene.prepare("default")
    _node(scene, "n1", "a100")
    scene.add(
        workflow("one", report=REPORT, ended="Succeeded", annotations={keys.APPLICATION: "r"}, node="n1"),
        workflow("two", annotations={keys.APPLICATION: "r"}, node="n1"),
    )
    read = _read_after_learning(scene, "two")
    before = scene.priors.profile(read, None)
    assert before is not None
    assert before.priors == {}
    _node(scene, "n2", "t4")
    eventually(lambda: len(scene.memory._pools.by_node()) == 2, "the node is seen")
    after = scene.priors.profile(read, None)
    assert after is not None
    assert after.priors == {pool_number("a100"): after.prior}
