"""What users, administrators and faults do: each operation takes a random job, pod or process."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diflow.common import keys
from diflow.kube.kinds import POD, WORKFLOW
from diflow.workflows import render, to_yaml
from tests.chaos.known import FAILS, Known, random_job
from tests.chaos.second import SecondNode
from tests.clusters import CommandError
from tests.e2e.allocators import Daemon
from tests.e2e.live import ENDED, Live, pod_name
from tests.e2e.test_dijobs import Controller

MOST_ACTIVE = 10
"""No job is submitted while so many have not ended."""
Json = dict[str, Any]


@dataclass
class Operations:
    """The operations on one namespace. `say` writes a line of the run's log, `complain` one that fails the run."""

    live: Live
    allocator: Daemon
    controller: Controller
    folder: Path
    chance: random.Random
    now: Callable[[], float]
    say: Callable[[str], None]
    complain: Callable[[str], None]
    second: SecondNode | None = None
    jobs: dict[str, Known] = field(default_factory=dict)

    def step(self) -> None:
        """Do one operation."""
        weights = dict(_WEIGHTS)
        if self.second is not None:
            self.second.step()
            weights[Operations.misfortune] = _MISFORTUNE
        choose = self.chance.choices(list(weights), list(weights.values()))[0]
        choose(self)

    def phase(self, name: str) -> str:
        """Argo's phase of a job; "" if it has no Workflow, or Argo has not seen it."""
        workflow = self.live.api.find(WORKFLOW, name, namespace=self.live.namespace) or {}
        return str(workflow.get("status", {}).get("phase") or "")

    # --- users --------------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """A new job, in one of four ways."""
        if sum(not job.deleted and self.phase(name) not in ENDED for name, job in self.jobs.items()) >= MOST_ACTIVE:
            return
        name = f"job-{len(self.jobs) + 1:03}"
        made = Known(random_job(name, self.chance), self.chance.choice(["argo", "kubectl", "diflow", "dijob"]), 0.0)
        tasks = ", ".join(f"{task.replicas} × {task.name}" for task in made.job.tasks)
        self.say(f"submit {name} by {made.way}: {tasks}, {made.job.scheduling}, {made.job.priority}"
                 f"{', preemptible' if made.job.preemptible else ''}")  # fmt: skip
        if made.way == "argo":
            self.live.argo("submit", "-", stdin=to_yaml(made.job))
        elif made.way == "kubectl":
            self.live.create(render(made.job))
        else:
            self._file(name).write_text(made.job.to_yaml())
            self._diflow("submit", str(self._file(name)), *(["--as", "dijob"] if made.way == "dijob" else []))
        made.submitted = self.now()
        self.jobs[name] = made

    def suspend(self) -> None:
        """A job that is not suspended, with argo or diflow."""
        if name := self._active(lambda job: not job.suspended):
            self.jobs[name].suspended = True
            self._verb("suspend", name)

    def resume(self) -> None:
        """A job that was suspended."""
        if name := self._any(lambda job: job.suspended):
            self.end_of_suspension(name)

    def resume_another(self) -> None:
        """Any job: of a gang that waits, that must not pass the queue for longer than a moment."""
        if name := self._active():
            self.end_of_suspension(name)

    def end_of_suspension(self, name: str) -> None:
        """Resume this job."""
        self.jobs[name].suspended = False
        self._verb("resume", name)

    def scale(self) -> None:
        """Another number of replicas."""
        if name := self._active(lambda job: job.is_gang):
            task = self.jobs[name].job.tasks[0].name
            self._diflow("scale", name, "-t", task, "--replicas", str(self.chance.choice([1, 2, 3, 4])))

    def change_priority(self) -> None:
        """By hand, with kubectl."""
        if name := self._active():
            label = f"{keys.PRIORITY}={self.chance.choice(['high', 'normal'])}"
            self._kubectl("label", "workflow", name, "--overwrite", label)

    def spoil(self) -> None:
        """Nonsense in an annotation of the allocator."""
        if name := self._active():
            self._kubectl("annotate", "workflow", name, "--overwrite", f"{keys.ALLOCATION}={{}}")

    def stop(self) -> None:
        """End a job."""
        if name := self._active():
            self.jobs[name].stopped = True
            if self.chance.random() < 0.5:
                self._argo(self.chance.choice(["stop", "terminate"]), name)
            else:
                self._diflow("stop", name, *self.chance.choice([[], ["--now"]]))

    def retry(self) -> None:
        """A job that failed."""
        name = self._any(lambda job: job.stopped or job.failures > 0)
        if not name or self.phase(name) not in ("Failed", "Error"):
            return
        job, was = self.jobs[name], self.jobs[name].stopped
        job.stopped = False
        done = self._diflow("retry", name) if self.chance.random() < 0.7 else self._argo("retry", name)
        job.stopped = was and not done  # argo refuses a job that was stopped while it ran (docs/jobs.md)

    def follow_advice(self, name: str) -> None:
        """Repair a job that `argo retry` has left without pods. Of a job without the allocator its user does it."""
        if not self.jobs[name].is_gang and "repair it with `diflow retry" in self.live.diflow("describe", name).out:
            self._diflow("retry", name)

    def resubmit(self) -> None:
        """A copy of a job that has ended, by argo."""
        name = self._any()
        if not name or self.phase(name) not in ENDED:
            return
        new = json.loads(self.live.argo("resubmit", name, "-o", "json"))["metadata"]["name"]
        self.say(f"argo resubmit {name}: {new}")
        self.jobs[new] = replace(self.jobs[name], way="argo", complaints=set())
        self.jobs[new].again(self.now())

    def delete(self) -> None:
        """A job, running or not."""
        if name := self._any():
            self._delete(name)

    def replace(self) -> None:
        """Delete a job and submit another one under its name at once."""
        name = self._any(lambda job: job.way in ("diflow", "dijob"))
        if not name:
            return
        job = self.jobs[name]
        job.again(self.now())  # it has no Workflow for a moment
        if job.way == "dijob":
            self._kubectl("delete", "dijob", name)
            self._kubectl("apply", "-f", str(self._file(name)))
        else:
            self._diflow("delete", name)
            if not self._diflow("submit", str(self._file(name)), "--timeout", "100s"):
                job.deleted = self.now()
                return
        job.again(self.now())

    # --- faults -------------------------------------------------------------------------------------------------------

    def delete_pod(self) -> None:
        """Of any phase, sometimes without its grace period."""
        if pod := self._pod("Running", "Pending"):
            how = ["--force", "--grace-period=0"] if self.chance.random() < 0.3 else []
            self._kubectl("delete", "pod", pod_name(pod), "--wait=false", *how)

    def fail(self) -> None:
        """A replica exits with 3."""
        pod = self._pod("Running")
        if pod and self.second is not None and self.second.silent_since and self._is_on_second(pod):
            return  # no kubelet would carry the command out
        if pod and (job := self.jobs.get(pod["metadata"]["labels"][keys.JOB])):
            job.failures += 1
            self._kubectl("exec", pod_name(pod), "-c", "main", "--", "touch", FAILS)

    def kill_allocator(self) -> None:
        """SIGKILL, and a new process now or later."""
        self.say("kill the allocator")
        self.allocator.kill()
        time.sleep(self.chance.choice([0, 2, 10]))
        self.allocator.start()

    def freeze_allocator(self) -> None:
        """SIGSTOP for less than its Lease."""
        self.say("freeze the allocator")
        self.allocator.freeze()
        time.sleep(self.chance.choice([1, 5]))
        self.allocator.thaw()

    def kill_controller(self) -> None:
        """SIGKILL, and a new process."""
        self.say("kill the controller")
        self.controller.kill(signal.SIGKILL)
        self.controller.start()

    def restart_argo(self) -> None:
        """Delete the pod of Argo's controller."""
        self.say("restart Argo")
        self.live.cluster.kubectl("-n", "argo", "delete", "pod", "-l", "app=workflow-controller", "--wait=false")

    def cordon(self) -> None:
        """The first node takes no pods for a while."""
        node = self.live.node()["metadata"]["name"]
        self.say("cordon the node")
        self.live.cluster.kubectl("cordon", node)
        time.sleep(self.chance.choice([2, 8]))
        self.live.cluster.kubectl("uncordon", node)

    def misfortune(self) -> None:
        """Of the second node."""
        if self.second is not None:
            self.second.misfortune()

    # --- how ----------------------------------------------------------------------------------------------------------

    def _is_on_second(self, pod: Json) -> bool:
        return self.second is not None and pod["spec"].get("nodeName") == self.second.name

    def _any(self, which: Callable[[Known], bool] = lambda _: True) -> str:
        found = [name for name, job in self.jobs.items() if not job.deleted and which(job)]
        return self.chance.choice(found) if found else ""

    def _active(self, which: Callable[[Known], bool] = lambda _: True) -> str:
        name = self._any(which)
        return name if name and self.phase(name) not in ENDED else ""

    def _pod(self, *phases: str) -> Json | None:
        pods = self.live.api.list_all(POD, namespace=self.live.namespace, labels=keys.JOB)
        found = [pod for pod in pods if pod["status"].get("phase") in phases and not _is_ending(pod)]
        return self.chance.choice(found) if found else None

    def _delete(self, name: str) -> None:
        job = self.jobs[name]
        job.deleted = self.now()
        way = self.chance.choice(["argo", "kubectl", "diflow"])
        if job.way == "dijob":  # the controller would make its Workflow again
            way = self.chance.choice(["object", "diflow"])
        if way == "argo":
            self._argo("delete", name)
        elif way == "diflow":
            self._diflow("delete", name)
        else:
            self._kubectl("delete", "dijob" if way == "object" else "workflow", name, "--wait=false")

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def _verb(self, verb: str, name: str) -> bool:
        return self._diflow(verb, name) if self.chance.random() < 0.5 else self._argo(verb, name)

    def _diflow(self, *arguments: str) -> bool:
        result = self.live.diflow(*arguments)
        self.say(f"diflow {' '.join(arguments)}{_tail(result.err) if result.code else ''}")
        if "Traceback" in result.err:
            self.complain(f"diflow {' '.join(arguments)} raised:\n{result.err}")
        return result.code == 0

    def _argo(self, *arguments: str) -> bool:
        return self._other("argo", self.live.argo, arguments)

    def _kubectl(self, *arguments: str) -> bool:
        return self._other("kubectl", self.live.kubectl, arguments)

    def _other(self, program: str, run: Callable[..., str], arguments: tuple[str, ...]) -> bool:
        try:
            run(*arguments)
        except CommandError as error:
            self.say(f"{program} {' '.join(arguments)}{_tail(str(error))}")
            return False
        self.say(f"{program} {' '.join(arguments)}")
        return True


def _is_ending(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _tail(text: str) -> str:
    return f": refused: {' '.join(text.split())[-300:]}"


_WEIGHTS: dict[Callable[[Operations], None], float] = {
    Operations.submit: 9,
    Operations.suspend: 2,
    Operations.resume: 2,
    Operations.resume_another: 1,
    Operations.scale: 3,
    Operations.change_priority: 1,
    Operations.spoil: 0.5,
    Operations.stop: 1,
    Operations.retry: 2,
    Operations.resubmit: 1,
    Operations.delete: 1,
    Operations.replace: 1.2,
    Operations.delete_pod: 2,
    Operations.fail: 2,
    Operations.kill_allocator: 1,
    Operations.freeze_allocator: 1,
    Operations.kill_controller: 0.5,
    Operations.restart_argo: 0.5,
    Operations.cordon: 0.5,
}
_MISFORTUNE = 8.0
"""The weight of a misfortune of the second node, of which there is one at a time."""
