"""The second node of a run, and what befalls it: its kubelet stops, its power fails, an administrator takes it away.

One thing at a time: each is over after seconds or minutes, by actions that are due at a later time. The users of the
run go on meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import lifecycle
from cluster.load import SECOND
from diflow.common import keys
from diflow.kube.kinds import NODE
from tests.chaos.known import GPU
from tests.clusters import ROOT, CommandError
from tests.e2e.live import Live

KUBELET = "kubelet-2"
NOTICED_SECONDS = 50.0
"""After which Kubernetes calls a silent node not ready (kube-controller-manager's --node-monitor-grace-period)."""
LOST_SECONDS = NOTICED_SECONDS + 30.0
"""After which the allocator must have given up the pods of a silent node. It may stand still itself meanwhile."""
RETURNED_SECONDS = 60.0
"""What the kubelet of a node that returned needs to look at all of its pods."""
Json = dict[str, Any]


@dataclass
class SecondNode:
    """The second node. `gpus`: how many it should have. `silent_since`: since when no kubelet speaks for it, 0 if one
    does. `returned`: when one spoke again. Times are seconds of the run."""

    live: Live
    name: str
    most: int
    chance: random.Random
    now: Callable[[], float]
    say: Callable[[str], None]
    gpus: int = 0
    silent_since: float = 0.0
    returned: float = 0.0
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.live.cluster.name is not None
        self.plan = lifecycle.load(self.live.cluster.name)
        self.gpus = self.most

    # --- for those who judge ------------------------------------------------------------------------------------------

    def excuses_pods(self, now: float) -> bool:
        """Whether pods there may stay as they are: their kubelet is silent, and nobody must have noticed yet; or it
        has just returned."""
        if self.silent_since:
            return now - self.silent_since < LOST_SECONDS
        return self.returned > 0 and now - self.returned < RETURNED_SECONDS

    def since(self, then: float, now: float) -> float:
        """`then`, or the later time from which a kubelet can end what is there: pods that are deleted wait for it."""
        return now if self.silent_since else max(then, self.returned)

    # --- what happens -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do what is due."""
        later = []
        for when, act in self.due:
            if when <= self.now():
                act()
            else:
                later.append((when, act))
        self.due = later
        self._give()

    def end(self) -> None:
        """Do all that is due at once."""
        due, self.due = self.due, []
        for _, act in sorted(due, key=lambda one: one[0]):
            act()
        self.gpus = self.most

    def is_whole(self) -> bool:
        """Its kubelet speaks, and it has its GPUs."""
        self._give()
        node = self.live.api.find(NODE, self.name)
        return node is not None and _is_ready(node) and _gpus(node) == self.gpus

    def misfortune(self) -> None:
        """One of them, unless one is not over yet, or nothing runs there that could suffer."""
        if self.due or all(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in self._pods()):
            return
        choose = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        choose(self)

    def freeze(self) -> None:
        """Its kubelet stands still; its containers run on."""
        seconds = self._say_for("freeze its kubelet", [10, 40, 80, 120])
        self._signal_kubelet(signal.SIGSTOP)
        self.silent_since = self.now()
        self._later(seconds, self._thaw)

    def restart_kubelet(self) -> None:
        """Its kubelet is killed, and starts again: a node then has no GPUs until their plugin has registered."""
        self.say("second node: restart its kubelet")
        self._signal_kubelet(signal.SIGKILL)

    def fail(self) -> None:
        """Its power fails, for a moment or for minutes. A cloud or an administrator may delete its object then."""
        seconds = self._say_for("its power fails", [0, 0, 20, 80, 120])
        for name in (KUBELET, SECOND):
            (self.plan.paths.wanted / name).unlink(missing_ok=True)
        self._kill_all()
        self.silent_since = self.now()
        if seconds > 20 and self.chance.random() < 0.5:
            self._later(self.chance.choice([10, 65]), self._delete_object)
        self._later(seconds, self._power)

    def drain(self) -> None:
        """An administrator drains it, and lets it take pods again later."""
        seconds = self._say_for("drain", [5, 20, 45])
        space = self.live.namespace
        self._kubectl("cordon", self.name)
        for pod in self._pods():  # as `kubectl drain` does, which would wait for the end of each
            name = pod["metadata"]["name"]
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": space}}
            path = f"/api/v1/namespaces/{space}/pods/{name}/eviction"
            self._kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        self._later(seconds, lambda: self._kubectl("uncordon", self.name))

    def cordon(self) -> None:
        """It takes no new pods for a while."""
        seconds = self._say_for("cordon", [5, 20, 60])
        self._kubectl("cordon", self.name)
        self._later(seconds, lambda: self._kubectl("uncordon", self.name))

    def taint(self) -> None:
        """It takes no new pods for a while, or ends those that it has as well."""
        taint = f"diflow-test/chaos=true:{self.chance.choice(['NoSchedule', 'NoExecute'])}"
        seconds = self._say_for(f"taint {taint}", [5, 20, 60])
        self._kubectl("taint", "node", self.name, taint)
        self._later(seconds, lambda: self._kubectl("taint", "node", self.name, "diflow-test/chaos-"))

    def change_gpus(self) -> None:
        """Some of its GPUs are gone for a while."""
        count = self.chance.choice(range(self.most))
        seconds = self._say_for(f"{count} GPUs", [5, 20, 60])
        self.gpus = count
        self._give()
        self._later(seconds, lambda: setattr(self, "gpus", self.most))

    # --- how ----------------------------------------------------------------------------------------------------------

    def _pods(self) -> list[Json]:
        """The pods of jobs there."""
        found: list[Json] = self.live.get("pods", labels=keys.JOB, fields=f"spec.nodeName={self.name}")["items"]
        return found

    def _say_for(self, what: str, choices: list[float]) -> float:
        seconds = self.chance.choice(choices)
        self.say(f"second node: {what}, for {seconds:g} s")
        return seconds

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self.due.append((self.now() + seconds, act))

    def _thaw(self) -> None:
        self.say("second node: its kubelet goes on")
        self._signal_kubelet(signal.SIGCONT)
        self._is_back()

    def _power(self) -> None:
        self.say("second node: its power is back")
        (self.plan.paths.wanted / KUBELET).touch()  # its content is the size of a disk of its own: none
        (self.plan.paths.wanted / SECOND).touch()
        self._is_back()

    def _delete_object(self) -> None:
        self.say("second node: delete its object")
        self._kubectl("delete", "node", self.name, "--ignore-not-found")

    def _is_back(self) -> None:
        self.silent_since, self.returned = 0.0, self.now()

    def _give(self) -> None:
        """What a device plugin does: tell how many GPUs the node has, whenever its kubelet does not know."""
        if self.silent_since:
            return
        node = self.live.api.find(NODE, self.name)
        if node is not None and _is_ready(node) and _gpus(node) != self.gpus:
            give(self.live, self.name, str(self.gpus))

    def _kubectl(self, *arguments: str, stdin: str | None = None) -> None:
        try:
            self.live.cluster.kubectl(*arguments, stdin=stdin)
        except CommandError as error:
            self.say(f"kubectl {' '.join(arguments)}: refused: {' '.join(str(error).split())[-200:]}")

    def _signal_kubelet(self, number: signal.Signals) -> None:
        for pid in _pids(f"{self.plan.paths.config}/{KUBELET}.json"):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_all(self) -> None:
        """The kubelet, the containerd, and all processes in containers."""
        config, socket = self.plan.paths.config, str(self.plan.paths.second_socket)
        pids = {*_pids(f"{config}/{KUBELET}.json"), *_pids(f"{config}/{SECOND}.toml")}
        shims = _pids(socket)
        for pid in [*pids, *shims, *_descendants(shims)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def second_node(live: Live, first: str) -> Iterator[str]:
    """The name of a second real node. Argo stays on the first one: what happens to Argo is another fault."""
    if live.cluster.name is None:
        raise SystemExit("--nodes 2 needs a cluster of `python3 -m cluster`: only there is a second real node")
    command = [sys.executable, "-m", "cluster", "second-node", "--name", live.cluster.name]
    name = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    argo_on(live, first)
    try:
        yield name
    finally:
        argo_on(live, None)
        live.cluster.kubectl("taint", "node", name, "diflow-test/chaos-", check=False)
        live.cluster.kubectl("cordon", name, check=False)  # whatever comes later on this cluster finds one node


def argo_on(live: Live, node: str | None) -> None:
    """Keep Argo's pods on this node, or let them go."""
    where = {"spec": {"template": {"spec": {"nodeSelector": {keys.HOSTNAME: node}}}}}
    for name in ("workflow-controller", "argo-server"):
        live.cluster.kubectl("-n", "argo", "patch", "deployment", name, "--type=merge", "-p", json.dumps(where))
    live.cluster.kubectl("-n", "argo", "rollout", "status", "deployment/workflow-controller", "--timeout=120s")


def give(live: Live, node: str, count: str | None) -> None:
    """The node has so many GPUs."""
    patch = json.dumps({"status": {"capacity": {GPU: count}, "allocatable": {GPU: count}}})
    live.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def _is_ready(node: Json) -> bool:
    conditions = node["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _gpus(node: Json) -> int:
    return int(node["status"].get("allocatable", {}).get(GPU, 0))


def _pids(part: str) -> list[int]:
    """The processes with this text in an argument of theirs."""
    return [pid for pid, words in _commands().items() if any(word.endswith(part) for word in words)]


def _commands() -> dict[int, list[str]]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return found


def _descendants(pids: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    out: list[int] = []
    waiting = list(pids)
    while waiting:
        waiting += (found := children.get(waiting.pop(), []))
        out += found
    return out


_WEIGHTS: dict[Callable[[SecondNode], None], float] = {
    SecondNode.freeze: 2,
    SecondNode.fail: 3,
    SecondNode.restart_kubelet: 0.5,
    SecondNode.drain: 1,
    SecondNode.cordon: 0.5,
    SecondNode.taint: 1,
    SecondNode.change_gpus: 1,
}
