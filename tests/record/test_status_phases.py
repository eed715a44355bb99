"""Each row of the table of phases, and each way from one phase to another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diflow.record.status.status import derive, unknown
from diflow.record.status.timeline import PHASES
from tests.record.seen import SeenJob, at, history, phases

Case = Callable[[], SeenJob]


def just_submitted() -> SeenJob:
    job = SeenJob(learner=1)
    job.status = {}
    return job


def nothing_placed() -> SeenJob:
    job = SeenJob(learner=1, collector=1)
    job.pod("learner-0").unschedulable("0/1 nodes are available: 1 Insufficient cpu.")
    job.pod("collector-0").unschedulable("0/1 nodes are available: 1 Insufficient cpu.")
    return job


def some_ready() -> SeenJob:
    job = SeenJob(learner=1, collector=1)
    job.pod("learner-0").ready(3)
    job.pod("collector-0").placed(1)
    return job


def all_ready() -> SeenJob:
    return SeenJob(learner=1, collector=2).all_ready(5)


def ready_or_done() -> SeenJob:
    job = SeenJob(learner=1, evaluator=1)
    job.pod("learner-0").ready(4)
    job.pod("evaluator-0").ready(4).ends(9)
    return job


def replica_failed() -> SeenJob:
    job = all_ready()
    job.pods[2].ends(20, code=1)
    return job


def replica_starts_again() -> SeenJob:
    job = replica_failed()
    job.pod("collector-1", created=22, counted=1).placed(23)
    return job


def whole_round_restarts() -> SeenJob:
    job = SeenJob(learner=1, collector=1, preemptible=True).all_ready(5)
    job.pods[1].ends(20, code=1)
    job.pods[0].ends(22, code=143)
    job.pod("learner-0", created=25, restart=1).placed(25)
    job.pod("collector-0", created=25, restart=1)
    return job


def pod_was_evicted() -> SeenJob:
    job = all_ready()
    job.pods[1].gone(20)
    return job


def evicted_pod_is_replaced() -> SeenJob:
    job = pod_was_evicted()
    job.pod("collector-0", created=22, uncounted=1).placed(23)
    return job


def task_grows() -> SeenJob:
    job = all_ready()
    job.granted["1"]["collector"] = 3
    return job


def grown_pod_is_on_its_way() -> SeenJob:
    job = task_grows()
    job.pod("collector-2", created=30).placed(31)
    return job


def new_round_asked_for() -> SeenJob:
    return SeenJob(worker=2, preemptible=True).all_ready(5).moves_to("2", worker=3)


def new_round_starts() -> SeenJob:
    job = new_round_asked_for()
    for old in job.pods:
        old.ends(20, code=143)
    job.pod("worker-0", created=24, round="2").ready(26)
    job.pod("worker-1", created=24, round="2").placed(25)
    job.pod("worker-2", created=24, round="2")
    return job


def new_round_runs() -> SeenJob:
    job = new_round_asked_for()
    for old in job.pods:
        old.ends(20, code=143)
    for index in range(3):
        job.pod(f"worker-{index}", created=24, round="2").ready(26)
    return job


def all_done_but_argo() -> SeenJob:
    job = all_ready()
    for pod in job.pods:
        pod.ends(40)
    return job


def failed_for_good_but_argo() -> SeenJob:
    job = SeenJob(learner=1, collector=1, backoff_limit=0).all_ready(5)
    job.pods[1].ends(20, code=1)
    return job.shutdown(by_itself=True)


@pytest.mark.parametrize(
    ("case", "phase"),
    [
        (just_submitted, "Pending"),
        (nothing_placed, "Pending"),
        (some_ready, "Starting"),
        (all_ready, "Running"),
        (ready_or_done, "Running"),
        (replica_failed, "Restarting"),
        (replica_starts_again, "Restarting"),
        (whole_round_restarts, "Restarting"),
        (pod_was_evicted, "Rescheduling"),
        (evicted_pod_is_replaced, "Rescheduling"),
        (task_grows, "Rescheduling"),
        (grown_pod_is_on_its_way, "Rescheduling"),
        (new_round_asked_for, "Rescheduling"),
        (new_round_starts, "Rescheduling"),
        (new_round_runs, "Running"),
        (all_done_but_argo, "Running"),
        (failed_for_good_but_argo, "Running"),
        (lambda: all_done_but_argo().ended(50), "Succeeded"),
        (lambda: failed_for_good_but_argo().ended(50, "Failed"), "Failed"),
        (lambda: all_ready().ended(50, "Error", message="the controller gave up"), "Failed"),
    ],
)
def test_the_phase_is_the_row_of_the_table(case: Case, phase: str) -> None:
    status = case().derive()
    assert status.phase == phase
    assert status.reason == f"Job{phase}"
    assert status.message


@pytest.mark.parametrize(
    "case",
    [
        just_submitted, all_ready, ready_or_done, replica_failed, replica_starts_again, whole_round_restarts,
        evicted_pod_is_replaced, task_grows, new_round_asked_for, new_round_runs, all_done_but_argo,
        failed_for_good_but_argo, lambda: all_done_but_argo().ended(50),
    ],
)  # fmt: skip
def test_the_workflow_alone_tells_the_same_phase_as_with_its_pods(case: Case) -> None:
    assert case().derive_from_nodes().phase == case().derive().phase


def test_a_job_whose_cluster_cannot_be_read_is_unknown_and_says_why() -> None:
    status = unknown("no cluster answers at https://10.0.0.1:6443")
    assert (status.phase, status.reason) == ("Unknown", "JobUnknown")
    assert status.to_dict()["message"] == "no cluster answers at https://10.0.0.1:6443"


def test_the_workflows_end_alone_decides_succeeded_and_failed() -> None:
    for phase in ("Running", "Pending", ""):
        job = all_done_but_argo()
        job.status["phase"] = phase
        assert job.derive().phase not in ("Succeeded", "Failed")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (some_ready, [("Pending", 0), ("Starting", 0)]),
        (all_ready, [("Pending", 0), ("Starting", 0), ("Running", 5)]),
        (replica_failed, [("Pending", 0), ("Starting", 0), ("Running", 5), ("Restarting", 20)]),
        (whole_round_restarts, [("Pending", 0), ("Starting", 0), ("Running", 5), ("Restarting", 20)]),
        (evicted_pod_is_replaced, [("Pending", 0), ("Starting", 0), ("Running", 5), ("Rescheduling", 20)]),
        (grown_pod_is_on_its_way, [("Pending", 0), ("Starting", 0), ("Running", 5), ("Rescheduling", 30)]),
        (
            lambda: all_done_but_argo().ended(50),
            [("Pending", 0), ("Starting", 0), ("Running", 5), ("Succeeded", 50)],
        ),
        (
            lambda: failed_for_good_but_argo().ended(50, "Failed"),
            [("Pending", 0), ("Starting", 0), ("Running", 5), ("Failed", 50)],
        ),
    ],
)
def test_conditions_tell_the_phases_in_their_order_with_their_times(
    case: Case, expected: list[tuple[str, float]]
) -> None:
    assert history(case().derive()) == expected


def test_a_replica_that_failed_brings_the_job_back_to_running_when_its_next_try_is_ready() -> None:
    job = replica_failed()
    job.pod("collector-1", created=22, counted=1).ready(30)
    status = job.derive()
    assert history(status) == [("Pending", 0), ("Starting", 0), ("Restarting", 20), ("Running", 30)]
    assert (status.restarts, status.reschedules) == (1, 0)


def test_a_pod_of_which_only_a_monitor_was_ended_has_not_failed() -> None:
    """Its monitor did not listen for signals yet: the pod is Failed, and Argo will say that the replica Succeeded."""
    job = replica_failed()
    job.pods.pop()
    pod = job.pod("collector-1").ready(6).ends(20)
    pod.node.update(phase="Running", finishedAt=None)
    pod.node.pop("outputs")
    assert pod.pod is not None
    pod.pod["status"]["phase"] = "Failed"
    assert (job.derive().phase, job.derive().restarts) == ("Running", 0)
    pod.pod["status"]["message"] = "The node was low on resource: memory."
    assert job.derive().phase == "Rescheduling"


def test_an_evicted_pod_brings_the_job_back_to_running_without_counting_as_a_restart() -> None:
    job = pod_was_evicted()
    job.pod("collector-0", created=22, uncounted=1).ready(30)
    status = job.derive()
    assert history(status)[-2:] == [("Rescheduling", 20), ("Running", 30)]
    assert (status.restarts, status.reschedules) == (0, 1)


@pytest.mark.parametrize("has_pods", [True, False])
def test_a_job_whose_node_check_fails_was_never_running(has_pods: bool) -> None:
    job = SeenJob(worker=1)
    checked = job.pod("worker-0", created=1).placed(2)
    checked.node.update(phase="Failed", finishedAt=at(9), message="diflow-check: Error (exit code 3)")
    assert checked.pod is not None
    main = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    checked.pod["status"] |= {"phase": "Failed", "containerStatuses": [main]}
    job.pod("worker-0", created=10, uncounted=1)
    status = derive(job.workflow(), [pod.pod for pod in job.pods if pod.pod] if has_pods else [])
    assert [condition.type for condition in status.conditions][-1] == "Rescheduling"
    assert "Running" not in [condition.type for condition in status.conditions]


def test_a_pod_killed_from_outside_is_told_from_one_that_failed_by_what_argo_did_next() -> None:
    job = all_ready()
    job.pods[1].ends(20, code=137)
    job.pod("collector-0", created=22, uncounted=1).placed(23)
    assert job.derive().phase == "Rescheduling"


def test_a_grown_task_is_running_again_when_the_new_replica_is_ready() -> None:
    job = task_grows()
    job.pod("collector-2", created=30).ready(36)
    status = job.derive()
    assert history(status)[-2:] == [("Rescheduling", 30), ("Running", 36)]
    assert status.replicas == status.ready_replicas == 4


def test_a_released_replica_does_not_disturb_a_shrinking_job() -> None:
    job = all_ready()
    job.released = ["1/collector/1"]
    assert job.derive().phase == "Running"
    assert job.derive().replicas == 2
    job.pods[2].ends(20, code=143)
    assert (job.derive().phase, job.derive().replicas, job.derive().restarts) == ("Running", 2, 0)
    job.granted["1"]["collector"] = 1
    assert (job.derive().phase, job.derive().replicas) == ("Running", 2)


def dropped_and_wanted_again() -> SeenJob:
    job = all_ready()
    job.pods[2].ends(20, code=143)
    job.released = ["1/collector/1"]
    job.incarnations = {"1/collector/1": ".1"}
    return job


def test_a_replica_that_comes_back_after_a_drop_is_not_the_one_that_was_stopped() -> None:
    job = dropped_and_wanted_again()
    waits = job.derive()
    assert (waits.phase, waits.replicas, waits.ready_replicas, waits.restarts) == ("Rescheduling", 3, 2, 0)
    assert waits.task_status["collector"] == {"Running": 1}
    job.pod("collector-1", created=30, incarnation=1).ready(36, on="node-b")
    status = job.derive()
    assert history(status)[-2:] == [("Rescheduling", 30), ("Running", 36)]
    assert (status.ready_replicas, status.restarts, status.reschedules) == (3, 0, 0)
    assert status.allocation["collector"] == ["node-a", "node-b"]


def test_each_life_of_a_replica_has_its_own_tries_and_all_count_as_the_jobs_restarts() -> None:
    job = SeenJob(learner=1, collector=2).all_ready(5)
    job.pods[2].ends(10, code=1)
    job.pod("collector-1", created=12, counted=1).ready(14).ends(20, code=143)
    job.released = ["1/collector/1"]
    job.incarnations = {"1/collector/1": ".1"}
    job.pod("collector-1", created=30, incarnation=1).ready(31).ends(40, code=1)
    job.pod("collector-1", created=42, incarnation=1, counted=1).ready(45)
    status = job.derive()
    assert (status.phase, status.restarts) == ("Running", 2)
    assert history(status)[-2:] == [("Restarting", 40), ("Running", 45)]


def test_a_replica_whose_second_life_is_released_is_no_longer_wanted() -> None:
    job = dropped_and_wanted_again()
    job.pod("collector-1", created=30, incarnation=1).ready(36)
    job.released.append("1/collector/1.1")
    assert (job.derive().phase, job.derive().replicas) == ("Running", 2)
    job.incarnations["1/collector/1"] = ".10"
    job.pod("collector-1", created=60, incarnation=10).ready(66)
    assert (job.derive().phase, job.derive().replicas, job.derive().ready_replicas) == ("Running", 3, 3)


def test_what_was_dropped_is_no_failure_although_released_forgot_it() -> None:
    job = all_ready()
    job.pods[2].ends(20, code=143)
    job.granted["1"]["collector"] = 1
    assert phases(job.derive()) == ["Pending", "Starting", "Running"]
    job.ended(30, "Failed", message="child failed")
    assert "collector-1" not in job.derive().message


def test_a_job_that_grows_before_it_ever_ran_is_still_starting() -> None:
    job = some_ready()
    job.granted["1"]["collector"] = 2
    assert job.derive().phase == "Starting"


def test_a_replica_that_stops_answering_makes_the_job_starting_and_not_rescheduling() -> None:
    job = all_ready()
    job.pods[1].unready(20)
    status = job.derive()
    assert status.phase == "Starting"
    assert status.ready_replicas == 2


def test_the_message_names_the_node_that_does_not_answer() -> None:
    """Kubernetes takes back the condition Ready of its pods, and leaves the rest as the kubelet wrote it."""
    job = all_ready()
    lost, slow = job.pods[1], job.pods[2]
    lost._condition("ContainersReady", 5)
    lost.unready(20)
    slow._condition("ContainersReady", 20, status="False")
    slow.unready(20)
    assert job.derive().message == "1 of 3 replicas ready; collector-0: its node node-a does not answer"


def test_a_new_round_counts_as_a_reschedule_and_old_pods_no_longer_count() -> None:
    status = new_round_runs().derive()
    assert history(status) == [("Pending", 0), ("Starting", 0), ("Rescheduling", 20), ("Running", 26)]
    assert (status.restarts, status.reschedules) == (0, 1)
    assert status.task_status == {"worker": {"Running": 3}}


def starts_with_more_than_its_replicas() -> SeenJob:
    """The pods of the submitted number of replicas waited for the allocator and were never bound to a node."""
    job = SeenJob(worker=2, preemptible=True)
    for index in range(2):
        job.pod(f"worker-{index}").unschedulable("gated", reason="SchedulingGated")
    job.moves_to("2", worker=3)
    for pod in job.pods:
        pod.node |= {"phase": "Failed", "finishedAt": at(2), "message": "Pod was rejected: released for another round"}
        pod.pod = None
    return job


def test_a_first_start_with_more_than_was_submitted_is_no_reschedule() -> None:
    job = starts_with_more_than_its_replicas()
    assert (job.derive().phase, job.derive().restarts, job.derive().reschedules) == ("Pending", 0, 0)
    for index in range(3):
        job.pod(f"worker-{index}", created=3, round="2").ready(6)
    status = job.derive()
    assert history(status) == [("Pending", 0), ("Starting", 3), ("Running", 6)]
    assert (status.restarts, status.reschedules, status.replicas) == (0, 0, 3)


def test_each_move_after_the_first_start_counts_and_is_told_although_all_of_it_takes_one_second() -> None:
    job = starts_with_more_than_its_replicas()
    second = [job.pod(f"worker-{index}", created=3, round="2").ready(6) for index in range(3)]
    job.moves_to("3", worker=2)
    for pod in second:
        pod.ends(20, code=143)
    third = [job.pod(f"worker-{index}", created=24, round="3").ready(24) for index in range(2)]
    status = job.derive()
    assert history(status)[-2:] == [("Rescheduling", 20), ("Running", 24)]
    assert (status.restarts, status.reschedules) == (0, 1)
    job.moves_to("4", worker=1)
    for pod in third:
        pod.ends(40, code=143)
    job.pod("worker-0", created=44, round="4").placed(45)
    status = job.derive()
    assert (status.phase, status.restarts, status.reschedules) == ("Rescheduling", 0, 2)
    assert history(status)[-1] == ("Rescheduling", 40)


def test_old_pods_that_outlive_the_new_rounds_start_change_nothing() -> None:
    job = new_round_runs()
    job.pods[0].ends(60, code=143)
    assert job.derive().phase == "Running"


def test_a_users_stop_is_no_restart_although_pods_end_with_an_error() -> None:
    job = all_ready().shutdown()
    for pod in job.pods:
        pod.ends(20, code=143)
    assert job.derive().phase == "Running"
    job.ended(30, "Failed", message="Stopped with strategy 'Stop'")
    assert phases(job.derive()) == ["Pending", "Starting", "Running", "Failed"]


def test_pods_that_start_one_after_the_other_never_look_as_if_the_job_ran_before() -> None:
    job = SeenJob(worker=3)
    job.pod("worker-0", created=0).ready(1)
    job.pod("worker-1", created=2).ready(3)
    job.pod("worker-2", created=4).ready(5)
    assert phases(job.derive()) == ["Pending", "Starting", "Running"]


def test_exactly_the_present_phase_has_a_true_condition() -> None:
    for case in (nothing_placed, all_ready, replica_starts_again, new_round_runs):
        status = case().derive()
        assert [c.type for c in status.conditions if c.status == "True"] == [status.phase]
        assert all(c.status == "False" for c in status.conditions if c.type != status.phase)
        assert status.conditions[-1].type == status.phase


def test_a_passed_condition_says_until_when_it_held() -> None:
    conditions = {c.type: c for c in all_ready().derive().conditions}
    assert conditions["Starting"].last_update_time == conditions["Running"].last_transition_time


def test_every_phase_of_the_table_is_known() -> None:
    assert set(PHASES) == {
        "Pending", "Starting", "Running", "Restarting", "Rescheduling", "Succeeded", "Failed", "Unknown",
    }  # fmt: skip
