"""What admission adds to pods and refuses of them, which templates do not show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.fakeapi import Answer, Request, status
from tests.reports.lab import job, lab, task
from tests.reports.test_scheduler import nodes

Json = dict[str, Any]


def adds(**fields: Any) -> Any:
    """An admission that sets these fields of the spec of each pod."""
    return lambda pod: {**pod, "spec": {**pod["spec"], **fields}}


def with_sidecar(cpu: str) -> Any:
    """An admission that adds a container to each pod, as a mesh does."""
    more = {"name": "mesh", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return lambda pod: {**pod, "spec": {**pod["spec"], "containers": [*pod["spec"]["containers"], more]}}


@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_toleration_that_admission_adds_opens_tainted_nodes(*, preemptible: bool) -> None:
    with lab() as at:
        for n in range(2):
            at.cluster.machine(f"n{n}", taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], gpu=8)
        at.cluster.mutate = adds(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
        made = task(replicas=2, ask={"nvidia.com/gpu": "8"})
        at.cluster.submit(job("a", made, preemptible=preemptible))
        course = at.watch("a", seconds=20)["a"]
    assert course.since(2) <= 4.0
    assert course.begins_whole(2)
    assert at.cluster.refused == {}


def test_a_sidecar_of_a_mesh_is_counted_before_the_gang_starts() -> None:
    """Two pods fit on a node by their template, and one with the sidecar."""
    with lab() as at:
        nodes(at, 4)
        at.cluster.mutate = with_sidecar("100m")
        at.cluster.submit(job("a", task(replicas=4, ask={"cpu": "4"})))
        course = at.watch("a", seconds=20)["a"]
    assert course.since(4) <= 4.0
    assert course.begins_whole(4)
    assert len(set(course.where.values())) == 4
    assert course.rounds == 1


def test_a_gang_that_fits_only_without_the_sidecars_waits_whole() -> None:
    with lab() as at:
        nodes(at, 2)
        at.cluster.mutate = with_sidecar("100m")
        at.cluster.submit(job("a", task(replicas=4, ask={"cpu": "4"})))
        course = at.watch("a", seconds=120)["a"]
        at.cluster.submit(job("b", task(replicas=2, ask={"cpu": "1"})))
        at.until(lambda: len(at.running("b")) == 2, "another one starts")
    assert course.most == 0
    assert course.says("they take 2 of them")


def test_the_overhead_of_a_runtime_class_is_counted() -> None:
    with lab() as at:
        nodes(at, 2)
        at.cluster.mutate = adds(overhead={"cpu": "500m"}, nodeSelector={})
        at.cluster.submit(job("a", task(replicas=2, ask={"cpu": "4"})))
        course = at.watch("a", seconds=20)["a"]
    assert course.since(2) <= 4.0
    assert course.begins_whole(2)
    assert len(set(course.where.values())) == 2


def test_a_node_selector_that_admission_adds_is_followed() -> None:
    with lab() as at:
        at.cluster.machine("n0")
        at.cluster.machine("n1", labels={"pool": "kata"})

        def select(pod: Json) -> Json:
            chosen = {**(pod["spec"].get("nodeSelector") or {}), "pool": "kata"}
            return {**pod, "spec": {**pod["spec"], "nodeSelector": chosen}}

        at.cluster.mutate = select
        at.cluster.submit(job("a", task(replicas=2)))
        course = at.watch("a", seconds=20)["a"]
    assert course.since(2) <= 4.0
    assert set(course.where.values()) == {"n1"}


@pytest.mark.parametrize(
    "words",
    [
        'violates PodSecurity "restricted:latest": runAsNonRoot != true (container "main" must not set it)',
        "no PriorityClass with name none was found",
        'error looking up service account default/x: serviceaccount "x" not found',
        "maximum cpu usage per Container is 1, but limit is 2",
    ],
)
def test_a_gang_whose_pods_are_refused_waits_with_the_words_and_uses_nothing(words: str) -> None:
    with lab() as at:
        nodes(at, 2)
        at.cluster.forbid = lambda pod: words if "bad" in pod["metadata"]["labels"] else ""
        at.cluster.submit(job("a", task(replicas=2, labels={"bad": "yes"})))
        at.cluster.submit(job("b", task(replicas=2)))
        courses = at.watch("a", "b", seconds=60)
        assert courses["a"].most == 0
        assert courses["a"].says(f'the API server refuses its pods: "{words}"')
        assert courses["a"].restarts == 0
        assert at.cluster.of("a") == {}
        assert courses["b"].since(2) <= 4.0
        tries = len([pod for pod in at.cluster.tried if "bad" in pod["metadata"]["labels"]])
        assert tries <= 2 * 6, "each is tried with Argo's containers, and without them"
        at.cluster.forbid = lambda _: ""
        course = at.watch("a", seconds=80)["a"]
    assert course.since(2) <= 80.0
    assert course.begins_whole(2)
    assert course.restarts == 0


def test_what_is_refused_because_of_argos_own_containers_holds_nobody() -> None:
    """What Argo's containers state is not known exactly."""
    with lab() as at:
        nodes(at, 2)

        def forbid(pod: Json) -> str:
            names = {one["name"] for one in pod["spec"].get("initContainers") or ()}
            return "failed quota: q: must specify limits.cpu for: init" if "init" in names else ""

        at.cluster.forbid = forbid
        at.cluster.submit(job("a", task(replicas=2)))
        assert at.watch("a", seconds=10)["a"].since(2) <= 4.0


def denied(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/pods") and "dryRun" in request.query


@pytest.mark.parametrize(
    "answer",
    [
        status(403, 'pods is forbidden: User "x" cannot create resource "pods" in API group ""', reason="Forbidden"),
        status(422, 'Pod "a" is invalid: spec.containers[0].image: Required value', reason="Invalid"),
        status(503, "the server is currently unable to handle the request"),
    ],
    ids=["no right", "invalid", "unavailable"],
)
def test_what_cannot_be_asked_is_taken_as_the_template_has_it(answer: Answer) -> None:
    with lab() as at:
        nodes(at, 2)
        at.api.rule(lambda request: answer if denied(request) else None)
        at.cluster.submit(job("a", task(replicas=2)))
        assert at.watch("a", seconds=20)["a"].since(2) <= 10.0
        at.cluster.submit(job("b", task(replicas=2)))
        assert at.watch("b", seconds=20)["b"].since(2) <= 10.0


def test_a_webhook_that_never_answers_holds_its_job_alone() -> None:
    words = 'Internal error occurred: failed calling webhook "x.example.com": context deadline exceeded'

    def late(request: Request) -> Answer | None:
        of_a = denied(request) and "bad" in request.body["metadata"]["labels"]
        return status(500, words, reason="InternalError") if of_a else None

    with lab() as at:
        nodes(at, 2)
        at.api.rule(late)
        at.cluster.submit(job("a", task(replicas=2, labels={"bad": "yes"})))
        at.cluster.submit(job("b", task(replicas=3)))
        courses = at.watch("a", "b", seconds=30)
        assert courses["b"].since(3) <= 4.0
        assert courses["a"].most == 0
        assert courses["a"].says('failed calling webhook "x.example.com"')
        at.api.rules = [rule for rule in at.api.rules if rule is not late]
        assert at.watch("a", seconds=60)["a"].since(2) <= 60.0


def test_jobs_that_differ_in_their_arguments_alone_need_one_dry_run() -> None:
    with lab() as at:
        nodes(at, 4)
        for i in range(6):
            at.cluster.submit(job(f"trial-{i}", task(container={"args": [str(i)]})))
        at.watch("trial-5", seconds=10)
        assert [len(at.running(f"trial-{i}")) for i in range(6)] == [1] * 6
        assert len(at.cluster.tried) == 1


def test_what_admission_adds_is_asked_again_of_a_job_that_waits() -> None:
    """A webhook is installed while the gang waits for room."""
    with lab() as at:
        nodes(at, 1)
        at.cluster.submit(job("a", task(replicas=2, ask={"cpu": "8"})))
        at.watch("a", seconds=10)
        at.cluster.mutate = with_sidecar("100m")
        at.watch("a", seconds=130)
        nodes(at, 2)
        course = at.watch("a", seconds=40)["a"]
    assert course.most == 0, "no node of 8 CPUs takes 8 and a sidecar"


def test_a_stopped_allocator_asks_anew() -> None:
    with lab() as at:
        nodes(at, 2)
        at.cluster.mutate = with_sidecar("100m")
        at.cluster.submit(job("a", task(replicas=2, ask={"cpu": "8"})))
        at.watch("a", seconds=5)
        at.end()
        at.begin()
        assert at.watch("a", seconds=40)["a"].most == 0


@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_gate_of_another_controller_is_named_and_its_gang_starts_whole_when_it_is_gone(*, preemptible: bool) -> None:
    gate = {"name": "kueue.x-k8s.io/admission"}

    def add(pod: Json) -> Json:
        gates = [*(pod["spec"].get("schedulingGates") or ()), gate]
        return {**pod, "spec": {**pod["spec"], "schedulingGates": gates}}

    with lab() as at:
        nodes(at, 2)
        at.cluster.mutate = add
        at.cluster.submit(job("a", task(replicas=2, ask={"cpu": "8"}), preemptible=preemptible))
        course = at.watch("a", seconds=400)["a"]
        assert course.most == 0
        assert course.says("kueue.x-k8s.io/admission")
        assert not course.says("given back")
        assert course.rounds == 1
        assert len(at.cluster.of("a")) == 2, "its controller sees the pods"
        at.cluster.mutate = lambda pod: pod
        at.cluster.submit(job("b", task(replicas=2, ask={"cpu": "8"})))
        at.until(lambda: len(at.running("b")) == 2, "nobody else waits for it")
        at.cluster.delete("b")
        at.until(lambda: at.running("b") == {}, "they are gone")
        for pod in at.cluster.of("a").values():
            at.cluster.ungate(pod["metadata"]["name"], gate["name"])
            at.watch("a", seconds=5)
        course = at.watch("a", seconds=20)["a"]
    assert course.since(2) <= 20.0
    assert course.begins_whole(2)
    assert (course.rounds, course.restarts) == (1, 0)


@pytest.mark.parametrize(
    "words",
    [
        'pods "{}" is forbidden: violates PodSecurity "restricted:latest"',
        'admission webhook "x" denied the request: no',
    ],
)
def test_refusals_of_real_pods_use_nothing_of_the_backoff_limit(words: str) -> None:
    """The allocator may not ask before."""
    with lab(begin=False) as at:
        at.dry_runs = False
        at.begin()
        nodes(at, 2)
        refused = at.cluster.refuse_with(words)
        at.cluster.submit(job("a", task(replicas=2), backoff_limit=1))
        at.watch("a", seconds=20)
        assert len(refused) > 4
        at.cluster.refuse_with("")
        course = at.watch("a", seconds=400)["a"]
    assert course.restarts == 0
    assert at.cluster.phase("a") == "Running"
    assert course.most == 2
