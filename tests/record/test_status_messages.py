"""The message of a job: what it does, what it waits for, or why it failed."""

from __future__ import annotations

import json

import pytest

from diflow.common import keys
from diflow.record.parameters import Decision
from diflow.record.status.advice import with_advice
from diflow.record.status.observe import observe
from diflow.record.status.status import derive
from tests.record.seen import SeenJob


def failed(*, code: int = 1, message: str = "", tries: int = 0, limit: int = 3, preemptible: bool = False) -> SeenJob:
    job = SeenJob(learner=1, collector=2, backoff_limit=limit, preemptible=preemptible)
    for i in range(tries + 1):
        restart, counted = (i, 0) if preemptible else (0, i)
        pod = job.pod("collector-1", created=10 * i, restart=restart, counted=counted)
        pod.ready(10 * i + 2).ends(10 * i + 5, code=code, message=message)
    job.pod("learner-0", restart=tries if preemptible else 0).ready(3).ends(90, code=143)
    return job.shutdown(by_itself=True).ended(100, "Failed", message="Stopped with strategy 'Stop'")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (failed(tries=3), "collector-1 failed: Error (exit code 1), after 3 restarts"),
        (failed(tries=1, limit=1), "collector-1 failed: Error (exit code 1), after 1 restart"),
        (failed(limit=0), "collector-1 failed: Error (exit code 1); backoffLimit 0 allows no restart"),
        (failed(code=137, message="main: OOMKilled (exit code 137)", limit=0),
         "collector-1 failed: OOMKilled (exit code 137); it needs more memory than its limit; "
         "backoffLimit 0 allows no restart"),
        (failed(tries=2, limit=2, preemptible=True),
         "collector-1 failed: Error (exit code 1), after the whole job was restarted 2 times"),
        (failed(tries=1, limit=1, preemptible=True),
         "collector-1 failed: Error (exit code 1), after the whole job was restarted once"),
        (failed(limit=0, message="child process was lost"),
         "collector-1 failed: child process was lost (exit code 1); backoffLimit 0 allows no restart"),
    ],
)  # fmt: skip
def test_a_failed_job_names_the_replica_its_exit_code_and_its_restarts(job: SeenJob, message: str) -> None:
    assert job.derive().message == message
    assert job.derive_from_nodes().message == message


def test_a_job_that_a_user_stopped_says_so_even_when_its_pods_ended_with_errors() -> None:
    job = SeenJob(learner=1, backoff_limit=0).all_ready().shutdown()
    job.pods[0].ends(20, code=143)
    assert job.derive().message == "is being stopped: a user asked for it"
    assert job.ended(30, "Failed").derive().message == "stopped by a user"


def test_a_job_that_the_controller_stopped_says_why() -> None:
    job = SeenJob(learner=1).all_ready().shutdown()
    job.pods[0].ends(20, code=143)
    for phase, text in (("", "is being stopped: its step has ended"), ("Failed", "stopped: its step has ended")):
        workflow = (job.ended(30, phase) if phase else job).workflow()
        workflow["metadata"].setdefault("annotations", {})[keys.STOPPED_BECAUSE] = "its step has ended"
        assert derive(workflow).message == text


def test_a_terminated_job_says_so() -> None:
    job = SeenJob(learner=1).all_ready().shutdown("Terminate")
    job.pods[0].ends(20, code=143)
    assert job.ended(30, "Failed").derive().message == "terminated by a user"


def test_the_step_that_gives_up_does_not_count_when_argo_did_not_let_it_run() -> None:
    job = SeenJob(learner=1, backoff_limit=0).all_ready().shutdown()
    job.pods[0].ends(20, code=143)
    job.node(".round(0:1).learner(0:0).superseded.hooks.give-up", phase="Failed")
    assert job.ended(30, "Failed").derive().message == "stopped by a user"


def test_the_step_that_gives_up_counts_once_it_has_a_machine_however_argo_ends_it() -> None:
    job = SeenJob(learner=1, backoff_limit=0).all_ready().shutdown()
    job.pods[0].ends(20, code=3)
    step = ".round(0:1).learner(0:0).superseded.hooks.give-up(0)"
    job.node(step, kind="Pod", phase="Failed", message="workflow shutdown with strategy:  Stop", host="node-1")
    message = job.ended(30, "Failed").derive().message
    assert message == "learner-0 failed: Error (exit code 3); backoffLimit 0 allows no restart"


def test_a_job_that_gives_up_names_the_culprit_while_the_others_are_being_stopped() -> None:
    job = SeenJob(learner=1, collector=1, backoff_limit=0).all_ready()
    job.pods[1].ends(20, code=7)
    message = job.shutdown(by_itself=True).derive().message
    assert message == "is being stopped: collector-0 failed: Error (exit code 7); backoffLimit 0 allows no restart"


def test_the_culprit_is_the_first_to_fail_and_none_of_those_that_were_stopped_after_it() -> None:
    job = SeenJob(collector=3, backoff_limit=0)
    job.pod("collector-0").ready(1).ends(30, code=143)
    job.pod("collector-1").ready(1).ends(31, code=143)
    job.pod("collector-2").ready(1).ends(20, code=9)
    message = job.shutdown(by_itself=True).ended(40, "Failed").derive().message
    assert message.startswith("collector-2 failed: Error (exit code 9)")


def test_a_step_that_was_stopped_with_the_rest_is_not_why_a_job_failed() -> None:
    job = SeenJob(learner=1).all_ready()
    job.node(".service", phase="Failed", message="Stopped with strategy 'Stop'")
    assert job.shutdown().ended(30, "Failed").derive().message == "stopped by a user"


def test_argos_own_words_are_given_when_no_replica_failed() -> None:
    job = SeenJob(learner=1).ended(3, "Error", message="invalid spec: templates.job is broken")
    assert job.derive().message == "invalid spec: templates.job is broken"


@pytest.mark.parametrize("where", [".round(0:1).learner(0:0)", ".round(0:1)"])
def test_a_job_that_argo_retry_has_left_without_pods_says_how_to_repair_it(where: str) -> None:
    job = SeenJob(learner=1)
    job.node(f"{where}(0)", kind="DAG", phase="Failed").node(f"{where}(1)", kind="DAG", phase="Running")
    assert "argo retry" not in job.derive().message
    message = job.node(f"{where}(0)", kind="DAG", phase="Running").derive().message
    assert "argo retry has reset only a part" in message
    assert message.endswith("repair it with `diflow retry job`")


def test_an_attempt_that_argo_noted_but_never_made_is_left_out() -> None:
    job = SeenJob(learner=1).all_ready().shutdown()
    job.pods[0].ends(20, code=143)
    job.pod("learner-0", created=21, counted=1).gone(
        21, message="workflow shutdown with strategy: Stop", phase="Failed"
    )
    status = job.ended(30, "Failed").derive()
    assert status.restarts == 0
    assert status.allocation == {"learner": ["node-a"]}


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "nowhere/none:1"'),
        ("ErrImagePull", "not found"),
        ("CreateContainerConfigError", 'secret "keys" not found'),
        ("RunContainerError", 'exec: "nope": executable file not found in $PATH'),
        ("StartError", "failed to create containerd task"),
    ],
)
def test_a_starting_job_says_why_a_replica_does_not_start(reason: str, text: str) -> None:
    job = SeenJob(learner=1, collector=2)
    job.pod("learner-0").ready(3)
    for i in range(2):
        job.pod(f"collector-{i}").placed(1).waiting(reason, text)
    expected = f"1 of 3 replicas ready; collector-0 and collector-1: {with_advice(f'{reason}: {text}')}"
    assert job.derive().message == expected
    assert job.derive_from_nodes().message == expected


def test_a_pending_job_says_that_no_machine_has_room() -> None:
    job = SeenJob(learner=1)
    job.pod("learner-0").unschedulable("0/1 nodes are available: 1 Insufficient cpu.")
    status = job.derive()
    assert status.phase == "Pending"
    assert status.message == (
        "no replica has a node yet; learner-0: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu "
        "(ask for less, or wait for capacity)"
    )


def test_many_replicas_with_the_same_trouble_are_told_in_one_line() -> None:
    job = SeenJob(worker=5)
    for i in range(5):
        job.pod(f"worker-{i}").unschedulable("0/3 nodes are available")
    assert "worker-0 and 4 others: Unschedulable" in job.derive().message


TOO_MANY = "4 restarts over all replicas are more than backoffLimit 3: learner-0 failed last"


def test_a_job_that_the_allocator_ended_says_why() -> None:
    job = SeenJob(learner=1, collector=2).all_ready().shutdown().decided("stop", TOO_MANY)
    assert job.derive().message == f"is being stopped: {TOO_MANY}"
    for pod in job.pods:
        pod.ends(20, code=143)
    status = job.ended(30, "Failed", message="Stopped with strategy 'Stop'").derive()
    assert (status.phase, status.message) == ("Failed", TOO_MANY)
    assert job.derive_from_nodes().message == TOO_MANY


def test_a_users_stop_is_not_taken_for_the_allocators() -> None:
    job = SeenJob(learner=1).all_ready().shutdown().decided("admit", "it fits on node-a")
    assert job.derive().message == "is being stopped: a user asked for it"
    job.pods[0].ends(20, code=143)
    assert job.ended(30, "Failed").derive().message == "stopped by a user"


def test_what_the_allocator_says_is_why_its_gated_pods_wait() -> None:
    job = SeenJob(worker=2).decided("wait", "node-a and 2 others lack 3 cpu")
    for name in ("worker-0", "worker-1"):
        pod = job.pod(name).unschedulable("Scheduling is blocked", reason="SchedulingGated").pod
        assert pod is not None
        gates = pod["spec"]["schedulingGates"] = [{"name": "diflow/gang"}]
    for status in (job.derive(), job.derive_from_nodes()):
        assert status.phase == "Pending"
        assert status.message.endswith("worker-0 and worker-1: node-a and 2 others lack 3 cpu")
    gates.append({"name": "theirs/gate"})
    assert "worker-1: waits to be admitted (gate diflow/gang, theirs/gate)" in why_replicas_wait(job)


def why_replicas_wait(job: SeenJob) -> list[str]:
    return [f"{a.replica}: {a.waiting}" for a in observe(job.workflow(), job.all_pods()).attempts]


@pytest.mark.parametrize("said", ["{", "[]", "7", '{"why": ""}', '{"why": 3}', '{"action": "stop"}'])
def test_a_decision_that_cannot_be_read_is_none(said: str) -> None:
    job = SeenJob(learner=1).all_ready().shutdown()
    job.annotations["diflow/decision"] = said
    assert job.derive().message == "is being stopped: a user asked for it"


@pytest.mark.parametrize("time", [3, None, "yesterday", "2026-01-02T03:04:00", "9999-99-99T00:00:00Z"])
def test_a_decision_with_a_time_that_cannot_be_read_has_none(time: object) -> None:
    job = SeenJob(learner=1)
    job.annotations["diflow/decision"] = json.dumps({"action": "wait", "why": "no capacity", "time": time})
    assert observe(job.workflow()).job.notes.decision == Decision("wait", "no capacity", "")


def test_a_gated_pod_waits_to_be_admitted() -> None:
    job = SeenJob(worker=1)
    pod = job.pod("worker-0").unschedulable("Scheduling is blocked", reason="SchedulingGated")
    assert pod.pod is not None
    pod.pod["spec"]["schedulingGates"] = [{"name": "diflow/gang"}]
    assert job.derive().message.endswith("worker-0: waits to be admitted (gate diflow/gang)")
    pod.pod["spec"].pop("schedulingGates")
    assert job.derive().message.endswith("worker-0: waits to be admitted")


def test_a_container_that_is_on_its_way_is_no_trouble() -> None:
    job = SeenJob(worker=1)
    job.pod("worker-0").placed(1).waiting("ContainerCreating")
    assert job.derive().message == "0 of 1 replica ready"
    assert job.derive_from_nodes().message == "0 of 1 replica ready"


def test_a_gang_that_waits_for_its_admission_says_what_for_and_not_that_it_is_suspended() -> None:
    job = SeenJob(worker=2)
    job.spec["suspend"] = True
    job.more["places"] = "{}"
    assert job.derive().phase == "Pending"
    assert job.derive().message == "waits for the allocator (`diflow doctor` checks whether one runs)"
    job.decided("wait", "needs 2 GPUs more")
    assert job.derive().message == "needs 2 GPUs more"
    job.annotations["diflow/held"] = "true"
    job.labels["diflow/scheduling"] = "gang"
    assert job.derive().message == "suspended (`diflow resume job` resumes it)"


def test_a_gang_that_was_resumed_and_suspended_again_is_suspended() -> None:
    job = SeenJob(worker=1).all_ready()
    job.spec["suspend"] = True
    job.more["places"] = "{}"
    assert job.derive().message.startswith("suspended (`diflow resume job` resumes it)")


def test_a_job_that_argo_has_not_seen_says_whom_it_waits_for() -> None:
    job = SeenJob(worker=1)
    job.status = {}
    assert job.derive().message == "waits for Argo's workflow controller to take it up"


def test_a_gang_that_no_allocator_has_looked_at_says_so() -> None:
    job = SeenJob(worker=1)
    job.status, job.spec["suspend"], job.more["places"] = {}, True, "{}"
    assert job.derive().message == "waits for the allocator (`diflow doctor` checks whether one runs)"
    assert job.decided("admit", "waits: no node is free").derive().message == "waits: no node is free"


def test_a_job_that_argo_holds_back_gives_argos_reason() -> None:
    job = SeenJob(worker=1)
    job.status = {"phase": "Pending", "message": "Workflow processing has been postponed due to max parallelism limit"}
    assert job.derive().message == "Workflow processing has been postponed due to max parallelism limit"


def test_a_restarting_job_names_the_replica_and_how_much_of_the_limit_is_used_up() -> None:
    job = SeenJob(learner=1, collector=1, backoff_limit=3).all_ready()
    job.pods[1].ends(20, code=1)
    assert job.derive().message == "collector-0 failed: Error (exit code 1); it restarts (1 of 3)"
    job.pod("collector-0", created=22, counted=1).ready(23).ends(30, code=2)
    assert job.derive().message == "collector-0 failed: Error (exit code 2); it restarts (2 of 3)"


def test_a_preemptible_job_restarts_as_a_whole() -> None:
    job = SeenJob(learner=1, collector=1, preemptible=True, backoff_limit=2).all_ready()
    job.pods[1].ends(20, code=1)
    job.pod("learner-0", created=25, restart=1).placed(25)
    assert job.derive().message == "collector-0 failed: Error (exit code 1); the whole job restarts (1 of 2)"


def test_a_moving_job_says_what_moves() -> None:
    evicted = SeenJob(learner=1, collector=2).all_ready()
    evicted.pods[1].gone(20)
    assert evicted.derive().message == "collector-0 gets a new pod: 2 of 3 replicas ready"
    grown = SeenJob(learner=1, collector=2).all_ready()
    grown.granted["1"]["collector"] = 4
    assert grown.derive().message == "the number of replicas changed: 3 of 5 replicas ready"
    moved = SeenJob(worker=2, preemptible=True).all_ready().moves_to("2", worker=3)
    assert moved.derive().message == "moves to round 2: 0 of 3 replicas ready"


def test_a_running_job_counts_what_is_done() -> None:
    job = SeenJob(learner=1, collector=2).all_ready()
    assert job.derive().message == "all 3 replicas ready"
    job.pods[1].ends(20)
    assert job.derive().message == "2 of 3 replicas ready, 1 succeeded"
    for pod in (job.pods[0], job.pods[2]):
        pod.ends(25)
    assert job.derive().message == "all 3 replicas succeeded; Argo finishes the Workflow"
    assert SeenJob(learner=1).all_ready().derive().message == "the replica is ready"


def test_a_replica_whose_work_has_ended_but_not_its_pod_is_ending() -> None:
    job = SeenJob(learner=2).all_ready()
    pod = job.pods[0].ends(20)
    assert pod.pod is not None
    pod.node["phase"] = pod.pod["status"]["phase"] = "Running"
    assert job.derive().message == "1 of 2 replicas ready, 1 ending"
    assert job.derive().phase == "Running"


def test_a_suspended_job_says_how_it_goes_on() -> None:
    job = SeenJob(learner=1).all_ready()
    job.spec["suspend"] = True
    assert job.derive().message == "suspended (`diflow resume job` resumes it); the replica is ready"
