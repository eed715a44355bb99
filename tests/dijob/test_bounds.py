"""What is too large for Argo, the allocator or the server is refused with the field's path and the bound."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow import DIJob, InvalidError, Task
from diflow.allocator.watch.records import planning_record_of
from diflow.common import limits
from diflow.record.requests.changes import check_size
from diflow.workflows import render
from tests.builders import job, stored, task, template


def why(*tasks: Task, **fields: Any) -> InvalidError:
    with pytest.raises(InvalidError) as caught:
        job(*tasks, **fields)
    return caught.value


@pytest.mark.parametrize("number", [limits.MOST_REPLICAS + 1, 2_000_000, 2**63])
@pytest.mark.parametrize("field", ["replicas", "max_replicas", "min_replicas"])
def test_too_many_replicas_of_a_task(field: str, number: int) -> None:
    with pytest.raises(InvalidError) as caught:
        Task(type="learner", template=template(), **{field: number})
    assert f"at most {limits.MOST_REPLICAS:,}" in caught.value.message


def test_replicas_are_bounded_over_all_tasks_with_what_they_may_come_to_have() -> None:
    half = limits.MOST_REPLICAS // 2
    error = why(
        Task(type="none", name="a", replicas=1, max_replicas=half, template=template()),
        Task(type="none", name="b", replicas=half + 1, template=template()),
        name="j",
        namespace="n",
    )
    assert error.path == "spec.tasks"
    assert f"{limits.MOST_REPLICAS + 1:,} replicas in all, at most {limits.MOST_REPLICAS:,}" in error.message


def test_the_most_replicas_are_accepted_where_their_names_are_short() -> None:
    made = job(task("none", name="t", replicas=limits.MOST_REPLICAS), name="j", namespace="n")
    assert render(made)["spec"]["arguments"]["parameters"][2]["value"] == f'{{"1":{{"t":{limits.MOST_REPLICAS}}}}}'


def test_names_of_hosts_that_fit_in_no_variable_are_refused() -> None:
    large = task("none", name="worker" * 4, replicas=1600, dnsPolicy="Default")
    error = why(large, name="a-rather-long-name-of-a-job", namespace="team")
    assert error.path == "spec.tasks"
    assert "bytes of host names, which every container has in one variable" in error.message


def test_short_names_of_the_most_hosts_fit() -> None:
    hosts = task("none", name="w" * 20, replicas=limits.MOST_REPLICAS)
    assert job(hosts, name="j" * 37).has_short_hosts


def test_a_pod_whose_containers_all_list_the_hosts_of_each_task_must_still_fit() -> None:
    sidecars = [{"name": f"side-{i}", "image": "x"} for i in range(9)]
    containers = [*template()["spec"]["containers"], *sidecars]

    def of(replicas: int, **dns: str) -> Task:
        return Task(type="none", name="t", replicas=replicas, template={"spec": {"containers": containers, **dns}})

    other = task("none", name="other", dnsPolicy="Default")
    error = why(of(900, dnsPolicy="Default"), other, name="j")
    assert error.path == "spec.tasks[0].template.spec.containers"
    job(of(300, dnsPolicy="Default"), other, name="j")
    job(of(900), task("none", name="other"), name="j")  # without such lists
    job(of(900, dnsPolicy="Default"), name="j")


def test_the_lists_of_hosts_do_not_get_shorter_when_a_running_job_grows() -> None:
    small = job(task("none", name="w" * 20), name="j" * 30)
    with pytest.raises(InvalidError, match="bytes of host names"):
        check_size(stored(small), desired={"w" * 20: 1_800}, bounds={}, namespace="default", path="--replicas")
    check_size(stored(small), desired={"w" * 20: 900}, bounds={}, namespace="default", path="--replicas")
    large = job(task("none", name="w" * 20, replicas=257), name="j" * 30)
    check_size(stored(large), desired={"w" * 20: 1_800}, bounds={}, namespace="default", path="--replicas")


def test_too_many_tasks() -> None:
    tasks = [task("none", name=f"t{i}") for i in range(limits.MOST_TASKS + 1)]
    error = why(*tasks)
    assert error.path == "spec.tasks"
    assert f"{limits.MOST_TASKS + 1} tasks, at most {limits.MOST_TASKS}" in error.message
    assert len(job(*tasks[:-1]).tasks) == limits.MOST_TASKS


def test_too_many_containers() -> None:
    containers = [{"name": f"c{i}", "image": "x"} for i in range(limits.MOST_CONTAINERS + 1)]
    with pytest.raises(InvalidError, match=f"at most {limits.MOST_CONTAINERS}") as caught:
        Task(type="learner", template={"spec": {"containers": containers}})
    assert caught.value.path == "template.spec"


def test_too_many_different_resources_over_all_tasks() -> None:
    def asking(name: str, first: int) -> Task:
        limits = {f"example.com/r{i}": "1" for i in range(first, first + 9)}
        return task("none", name=name, container={"resources": {"limits": limits}})

    error = why(asking("a", 0), asking("b", 9))
    assert f"18 different resources, at most {limits.MOST_RESOURCES}" in error.message
    job(asking("a", 0), asking("b", 0))


def test_resources_of_the_overhead_count_too() -> None:
    overhead = {f"example.com/r{i}": "1" for i in range(limits.MOST_RESOURCES + 1)}
    error = why(task(runtimeClassName="kata", overhead=overhead))
    assert f"19 different resources, at most {limits.MOST_RESOURCES}" in error.message


def of_one_term(values: int) -> dict[str, Any]:
    line = {"key": "host", "operator": "In", "values": [f"n{i}" for i in range(values)]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [line]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def tolerating(number: int) -> dict[str, Any]:
    return {"tolerations": [{"key": f"taint-{i}", "operator": "Exists"} for i in range(number)]}


def selecting(number: int) -> dict[str, Any]:
    return {"nodeSelector": {f"label-{i}": "x" for i in range(number)}}


@pytest.mark.parametrize(
    ("spec", "allowed", "found"),
    [
        (of_one_term(200), of_one_term(limits.MOST_CONDITIONS - 2), 202),
        (tolerating(150), tolerating(limits.MOST_CONDITIONS), 150),
        (selecting(129), selecting(limits.MOST_CONDITIONS), 129),
    ],
)
def test_too_many_conditions_on_nodes_are_refused_and_no_job_is_held_that_was_let_through(
    spec: dict[str, Any], allowed: dict[str, Any], found: int
) -> None:
    error = why(task(), task("collector", **spec))
    assert error.path == "spec.tasks[1].template.spec"
    assert f"{found} conditions on nodes in one task, at most {limits.MOST_CONDITIONS}" in error.message
    assert stored(job(task(), task("collector", **allowed))).spec.too_large == ""


def test_what_the_administrator_adds_holds_no_job_that_was_let_through() -> None:
    """Default resources, and those of the monitor."""
    most = {f"example.com/r{i}": "1" for i in range(limits.MOST_RESOURCES)}
    bare: dict[str, Any] = {"name": "main", "image": "x", "command": ["x"]}
    containers = {"asking": {**bare, "resources": {"limits": most}}, "bare": bare}
    tasks = [{"name": name, "template": {"spec": {"containers": [one]}}} for name, one in containers.items()]
    made = DIJob(name="job", tasks=tasks, monitor=True, scheduling="gang")
    assert planning_record_of(render(made)).problem == ""


def test_too_many_ports_over_all_tasks() -> None:
    ports = [{"containerPort": 1000 + i} for i in range(limits.MOST_PORTS // 2 + 1)]
    error = why(*(task("none", name=name, container={"ports": ports}) for name in "ab"))
    assert f"{limits.MOST_PORTS + 2} ports, at most {limits.MOST_PORTS}" in error.message


def test_a_manifest_that_leaves_no_room_for_annotations_is_refused() -> None:
    error = why(task(container={"args": ["x" * limits.MOST_MANIFEST_BYTES]}))
    assert error.path == "spec"
    assert f"at most {limits.MOST_MANIFEST_BYTES:,}" in error.message


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_labels_and_annotations_are_bounded_together(kind: str) -> None:
    number = limits.MOST_METADATA_BYTES // 50
    error = why(**{kind: {f"key-{i}": "x" * 60 for i in range(number)}})
    assert error.path == "metadata"
    assert f"at most {limits.MOST_METADATA_BYTES:,}" in error.message


def test_the_largest_annotations_leave_half_of_their_room_to_the_allocator() -> None:
    note = "\N{GREEK SMALL LETTER ALPHA}" * (limits.MOST_METADATA_BYTES // 2 - 10)
    made = job(task(container={"args": ["x" * (limits.MOST_MANIFEST_BYTES - limits.MOST_METADATA_BYTES - 999)]}),
               annotations={"note": note})  # fmt: skip
    carried = render(made)["metadata"]["annotations"]
    assert sum(len(f"{key}{value}".encode()) for key, value in carried.items()) < 128 * 1024


def test_what_was_accepted_reads_back_from_the_annotation_that_carries_it() -> None:
    made = job(task(container={"args": ['\u2028\x7f\\"' * 1000]}))
    annotation = render(made)["metadata"]["annotations"]["diflow/dijob"]
    assert DIJob.from_manifest(json.loads(annotation)) == made
