"""`make demo-hostile`: one namespace tries all that it can write against the allocator while another submits jobs.

The nodes are fake (kwok answers for them, and runs nothing), all else is real: Kubernetes, Argo, the allocator in its
pods. It ends with a table, and with exit code 1 if a job of the honest namespace was not placed in time.

It uses the cluster of the present kubeconfig if `python3 -m cluster` made it, and asks before it changes anything there
(YES=1 answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from diflow import DiflowError
from diflow.common import keys
from diflow.common.tables import table
from diflow.common.words import shortened
from diflow.jobs import delete, events, lookup, submit
from diflow.kube.api import Cluster
from diflow.kube.kinds import EVENT, NODE, WORKFLOW
from fakestage import SYSTEM, empty_nodes, fake_job, fake_pod, prepared, with_fake_nodes
from hostile.attacks import ATTACKS, Attack, Tenant
from stage import DemoError, Target, exit_code, say

Json = dict[str, Any]
HONEST, HOSTILE = "demo-honest", "demo-hostile"
NODES, GPUS = 4, 4
IN_TIME_SECONDS = 10.0
"""From `submit` to the allocation of an honest job. Without an attack it takes about a second."""
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_TOLD_SECONDS = 3.0
_REPLICAS = 2
_STEADY = "steady"
_MEMORY = re.compile(r"^process_resident_memory_bytes (\S+)", re.MULTILINE)
_UNREADABLE = "-"


def main() -> int:
    """Run the demo. Returns 0 if every honest job was placed in time."""
    return exit_code(_run, left=f"what was created stays in the namespaces {HONEST} and {HOSTILE}")


def _run() -> int:
    target = with_fake_nodes(
        question="install manifests/ and manifests/allocator there, and fake nodes",
        otherwise="this demo attacks its allocator, and brings its own fake nodes",
    )
    with prepared(target, HOSTILE, HONEST):
        empty_nodes(target, count=NODES, gpus=GPUS)
        return Play(target, Cluster.connect()).run()


# --- what -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """How it went beside one attack. `seconds` is None if the honest job was not placed at all."""

    item: str
    what: str
    seconds: float | None
    memory_mib: str
    told: str
    harmed: bool = False
    """Whether a job of the honest namespace that ran already lost something."""

    @property
    def is_good(self) -> bool:
        return self.seconds is not None and self.seconds <= IN_TIME_SECONDS and not self.harmed


@dataclass
class Play:
    """The attacks, one after the other and beside each other: none is taken back before the end."""

    target: Target
    cluster: Cluster

    def run(self) -> int:
        """Returns the exit code."""
        tenant = Tenant(self.cluster, HOSTILE, fake_pod())
        self._place("warm-up")  # the allocator's pods have just started: their first look is not what is measured
        rows = [self._row("", "no attack yet", [])]
        try:
            beside: dict[str, Callable[[], Row]] = {
                attack.item: partial(self._beside, attack, tenant) for attack in ATTACKS
            }
            beside["h"] = self._without_a_node
            rows += [beside[item]() for item in sorted(beside)]
        finally:
            tenant.stop.set()
        print(attacks_table(rows))
        return 0 if all(row.is_good for row in rows) else 1

    def _beside(self, attack: Attack, tenant: Tenant) -> Row:
        say(f"{attack.item}: {attack.what}")
        try:
            made = attack.do(tenant)
        except DiflowError as error:  # refused at the door: that is an answer, too
            return self._row(attack.item, attack.what, [], told=f"refused by the API server: {error}")
        return self._row(attack.item, attack.what, made)

    def _without_a_node(self) -> Row:
        """Delete the Node object below a running job, and make it again when another job has been placed without it."""
        what = "a Node object is away for an instant"
        say(f"h: {what}")
        self._submit(_STEADY)
        pods = self._pods_of_steady()
        name = pods[0]["spec"]["nodeName"]
        node = self.cluster.get(NODE, name)
        self.cluster.delete(NODE, name)
        try:
            row = self._row("h", what, [])
        finally:
            metadata = {key: node["metadata"].get(key) for key in ("name", "labels", "annotations")}
            self.cluster.create(NODE, {**node, "metadata": metadata})
        time.sleep(_TOLD_SECONDS)
        left = {pod["metadata"]["uid"] for pod in self._pods_of_steady()}
        kept = sum(pod["metadata"]["uid"] in left for pod in pods)
        delete.delete(_STEADY, namespace=HONEST, cluster=self.cluster)
        return replace(row, told=f"{_STEADY} keeps {kept} of its {len(pods)} pods", harmed=kept < len(pods))

    def _pods_of_steady(self) -> list[Json]:
        """Its pods when all of them run and none is being deleted."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while True:
            pods = lookup.get(_STEADY, namespace=HONEST, cluster=self.cluster).pods
            running = [
                p for p in pods if p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp")
            ]
            if len(running) == _REPLICAS:
                return running
            if time.monotonic() > ends:
                raise DemoError(f"{_STEADY} does not run: diflow describe {_STEADY} -n {HONEST}")
            time.sleep(_LOOK_SECONDS)

    def _row(self, item: str, what: str, made: list[str], *, told: str = "") -> Row:
        seconds = self._place(f"honest-{item or 'first'}")
        if made:
            time.sleep(_TOLD_SECONDS)
        return Row(item, what, seconds, self._memory(), told or self._told(made))

    def _place(self, name: str) -> float | None:
        """Submit an honest job. Returns after how many seconds it had its place, None if it got none; ends it then."""
        began = time.monotonic()
        self._submit(name)
        placed = None
        while placed is None and time.monotonic() - began < _PATIENCE_SECONDS:
            found = self.cluster.get(WORKFLOW, name, namespace=HONEST)["metadata"]["annotations"]
            if json.loads(found.get(keys.ALLOCATION) or "{}").get("nodes"):
                placed = time.monotonic() - began
            time.sleep(_LOOK_SECONDS)
        say(f"   {name} " + (f"is placed after {placed:.1f} s" if placed is not None else "is not placed"))
        delete.delete(name, namespace=HONEST, cluster=self.cluster)
        return placed

    def _submit(self, name: str) -> None:
        submit.submit(fake_job(name, HONEST, {"replicas": _REPLICAS}), cluster=self.cluster)

    def _memory(self) -> str:
        """Of the process that leads, in MiB."""
        with suppress(DemoError):
            lease = json.loads(self.target.run_kubectl("get", "lease", "-n", SYSTEM, keys.ALLOCATOR, "-o", "json"))
            pod = str(lease["spec"].get("holderIdentity") or "").rpartition("-")[0]
            path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics"
            if found := _MEMORY.search(self.target.run_kubectl("get", "--raw", path)):
                return f"{float(found[1]) / 2**20:.0f}"
        return _UNREADABLE

    def _told(self, made: list[str]) -> str:
        """What the owner of these Workflows was told: the newest Event of the allocator, else the last decision."""
        if not made:
            return ""
        found = self.cluster.list_all(EVENT, namespace=HOSTILE)
        texts = [
            f"{event['reason']}: {event['message']}"
            for event in sorted(found, key=events.event_time)
            if event["involvedObject"].get("name") in made and events.is_allocators(event)
        ]
        return texts[-1] if texts else "nothing: it is as any other job"


def attacks_table(rows: list[Row]) -> str:
    """The rows for people."""
    head = ("", "ATTACK", "HONEST JOB", "MEMORY", "ITS OWNER IS TOLD")
    cells = []
    for row in rows:
        placed = "NOT PLACED" if row.seconds is None else f"{row.seconds:.1f} s" + ("" if row.is_good else " LATE")
        cells.append((row.item, row.what, placed, f"{row.memory_mib} MiB", shortened(row.told, 110, end="...")))
    return table(head, cells, right={"MEMORY"})


if __name__ == "__main__":
    sys.exit(main())
