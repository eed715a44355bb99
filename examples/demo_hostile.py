"""`make demo-hostile`: one namespace tries all that it can write against diflow while another submits jobs.

The nodes are fake (kwok answers for them, and runs nothing), all else is real: Kubernetes, Argo, and diflow in its
pods. Each attack has a namespace of its own. It ends with a table for each policy, and with exit code 1 if a job of the
honest namespace was not placed in time, if its jobs that ran lost something, or if a process of diflow was restarted.

    python examples/demo_hostile.py [--policies fit,fair,goodput,fair+goodput] [--only k,m]

It uses the cluster of the present kubeconfig if `python3 -m cluster` made it, and asks before it changes anything there
(YES=1 answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import requests

from diflow import DiflowError
from diflow.common.tables import table
from diflow.common.words import shortened
from diflow.jobs import delete, events, submit
from diflow.kube.api import Cluster
from diflow.kube.kinds import EVENT, NODE
from fakestage import (
    SYSTEM,
    empty_nodes,
    fake_job,
    fake_pod,
    fresh,
    install,
    prepared,
    queues_in_allocator,
    set_in_allocator,
    with_fake_nodes,
)
from hostile import daemons, honest
from hostile.asked import ASKED, Caller
from hostile.attacks import ATTACKS
from hostile.honest import STEADY_LOW, Honest
from hostile.tenant import Attack, Tenant
from stage import Target, exit_code, say

Json = dict[str, Any]
HONEST, HOSTILE = "demo-honest", "demo-hostile"
POLICIES = ("fit", "fair", "goodput", "fair+goodput")
NODES, GPUS = 12, 4
GUARANTEED = 24
LATE_SECONDS = 1.0
"""How much later than without an attack an honest job may have its place."""
MOST_RESTARTS = 2
"""Of the honest elastic job in all attacks under one policy, which take less than an hour."""
_NEW_JOBS = 3
_GOES_ON_SECONDS = 30.0
_TOLD_SECONDS = 3.0
_ASKED = "asked"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Returns 0 if no attack cost the honest namespace anything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--only", default="", help="letters of attacks, with commas")
    given = parser.parse_args(arguments)
    letters = [letter for letter in given.only.split(",") if letter]
    return exit_code(
        lambda: _run(given.policies.split(","), letters),
        left=f"what was created stays in the namespaces {HONEST} and {HOSTILE}-...",
    )


def _run(policies: Sequence[str], letters: Sequence[str]) -> int:
    target = with_fake_nodes(
        question="install manifests/ with the allocator, the server and the controller there, and fake nodes",
        otherwise="this demo attacks its allocator, and brings its own fake nodes",
    )
    good = True
    with prepared(target, HONEST), queues_in_allocator(target, honest.queues(GUARANTEED)):
        install(target, "crds", "server", "controller")
        empty_nodes(target, count=NODES, gpus=GPUS)
        for policy in policies:
            with set_in_allocator(target, {"DIFLOW_ALLOCATOR_POLICY": policy}):
                target.run_kubectl("rollout", "status", "-n", SYSTEM, "deployment/diflow-allocator", "--timeout=180s")
                play = Play(target, Cluster.connect(), policy)
                try:
                    play.run([a for a in ATTACKS if not letters or a.item in letters])
                finally:
                    print(f"\npolicy {policy}\n\n{attacks_table(play.rows)}", flush=True)
                good &= all(row.is_good for row in play.rows)
    return 0 if good else 1


# --- what -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """How it went beside one attack. `seconds`: until a new honest job had its place, None if it got none and ran.

    `alone`: the same without an attack. `restarts`: of the honest elastic job, since the policy began. `harmed`: what
    the honest namespace lost, "" for nothing.
    """

    item: str
    what: str
    seconds: float | None
    alone: float
    restarts: int = 0
    memory: str = ""
    told: str = ""
    harmed: str = ""

    @property
    def is_late(self) -> bool:
        return self.seconds is None or self.seconds > self.alone + LATE_SECONDS

    @property
    def is_good(self) -> bool:
        return not self.is_late and not self.harmed and self.restarts <= MOST_RESTARTS


@dataclass
class Play:
    """The attacks, one after the other, each from a namespace of its own that is deleted afterwards."""

    target: Target
    cluster: Cluster
    policy: str
    restarts: int = 0
    alone: float = 0.0
    daemons: daemons.Daemons = field(default_factory=lambda: daemons.Daemons(0.0, "-", 0))
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.honest = Honest(self.cluster, HONEST)
        self.nodes = [node["metadata"]["name"] for node in self.cluster.list_all(NODE, labels="kwok.x-k8s.io/node")]
        service = json.loads(self.target.run_kubectl("get", "service", "-n", SYSTEM, "diflow-server", "-o", "json"))
        self.server = f"http://{service['spec']['clusterIP']}:8081"

    def run(self, attacks: Sequence[Attack]) -> None:
        """All attacks. What was seen is in `rows`, even if one of them fails."""
        say(f"policy {self.policy}")
        self.caller = Caller.in_namespace(self.cluster, HONEST, self.server)
        self.honest.place()  # the processes have just started: their first look is not what is measured
        self.honest.begin()
        try:
            self.daemons = daemons.look(self.target, self.cluster)
            self.alone = self.honest.place(_NEW_JOBS) or 0.0
            self.rows.append(Row("", "no attack yet", self.alone or None, self.alone, memory=self.daemons.which))
            for attack in attacks:
                if not attack.policies or self.policy in attack.policies:
                    self.rows.append(self._beside(attack))
            self.rows.append(self._without_a_node())
        finally:
            self.honest.end()

    def _beside(self, attack: Attack) -> Row:
        say(f"{attack.item}: {attack.what}")
        name = f"{HOSTILE}-{attack.item}"
        round_before = self.honest.round()
        with fresh(self.target, name):
            tenant = Tenant(self.cluster, name, fake_pod(), self.nodes, self.server)
            alone = self._request_seconds() if attack in ASKED else 0.0
            try:
                row = self._row(attack, tenant)
            finally:
                tenant.stop.set()
            if attack in ASKED:
                row = replace(row, told=f"a request of others {self.beside:.2f} s, {alone:.2f} s alone")
        self.restarts += max(0, self.honest.round() - round_before)
        return replace(row, restarts=self.restarts)

    def _row(self, attack: Attack, tenant: Tenant) -> Row:
        told, made = "", []
        try:
            made = attack.do(tenant)
        except DiflowError as error:  # refused at the door: that is an answer, too
            told = f"refused by the API server: {error}"
        began = time.monotonic()
        seconds = self.honest.place(_NEW_JOBS)
        self.beside = self._request_seconds() if attack in ASKED else 0.0
        if attack.goes_on:
            time.sleep(max(0.0, began + _GOES_ON_SECONDS - time.monotonic()))
            later = self.honest.place(_NEW_JOBS)
            seconds = None if seconds is None or later is None else max(seconds, later)
        time.sleep(_TOLD_SECONDS)
        before, self.daemons = self.daemons, daemons.look(self.target, self.cluster)
        told = told or self._told(made, tenant.namespace)
        harmed = self._harm(self.daemons.restarts - before.restarts)
        return Row(attack.item, attack.what, seconds, self.alone, 0, self.daemons.which, told, harmed)

    def _harm(self, fallen: int) -> str:
        """What is not as it should be."""
        found = []
        if idle := self.honest.idle:
            found.append(f"{idle} new jobs did not run for {honest.PATIENCE_SECONDS:.0f} s")
        self.honest.idle = 0
        if lost := self.honest.lost():
            found.append(f"{lost} pods of a fixed job lost")
        least = GUARANTEED - honest.FIXED_REPLICAS - honest.NEW_REPLICAS if "fair" in self.policy else STEADY_LOW
        if (steady := self.honest.left(least)) < least:
            found.append(f"{steady} replicas left of the elastic job, not {least}")
        if fallen > 0:
            found.append(f"{fallen} restarts of diflow's processes")
        return "; ".join(found)

    def _request_seconds(self) -> float:
        """How long an honest request for replicas takes: the median of five, of a job of its own."""
        submit.submit(fake_job(_ASKED, HONEST, {"replicas": 1}, scheduling="gang"), cluster=self.cluster)
        time.sleep(_TOLD_SECONDS)  # the server has read of it
        try:
            return statistics.median(self.caller.scale(f"{HONEST}.{_ASKED}", by) for by in (1, -1, 1, -1, 1))
        except requests.RequestException as error:
            say(f"   a request of others failed: {error}")
            return float("inf")
        finally:
            delete.delete(_ASKED, namespace=HONEST, cluster=self.cluster)

    def _without_a_node(self) -> Row:
        """Delete the Node object below a running job, and make it again when others have been placed without it."""
        what = "a Node object is away for an instant"
        say(f"z: {what}")
        name = self.nodes[0]
        node = self.cluster.get(NODE, name)
        self.cluster.delete(NODE, name)
        try:
            seconds = self.honest.place()
        finally:
            metadata = {key: node["metadata"].get(key) for key in ("name", "labels", "annotations")}
            self.cluster.create(NODE, {**node, "metadata": metadata})
        time.sleep(_TOLD_SECONDS)
        lost = self.honest.lost()
        harmed = f"{lost} pods of a fixed job lost" if lost else ""
        return Row("z", what, seconds, self.alone, self.restarts, self.daemons.which, harmed=harmed)

    def _told(self, made: list[str], namespace: str) -> str:
        """What the owner of these Workflows was told: the newest Event of the allocator, else the last decision."""
        if not made:
            return ""
        found = self.cluster.list_all(EVENT, namespace=namespace)
        texts = [
            f"{event['reason']}: {event['message']}"
            for event in sorted(found, key=events.event_time)
            if event["involvedObject"].get("name") in made and events.is_allocators(event)
        ]
        return texts[-1] if texts else "nothing: it is as any other job"


def attacks_table(rows: list[Row]) -> str:
    """The rows for people."""
    head = ("", "ATTACK", "NEW JOB", "RESTARTS", "MOST MEMORY", "HONEST JOBS", "ITS OWNER IS TOLD")
    cells = []
    for row in rows:
        placed = "NOT PLACED" if row.seconds is None else f"{row.seconds:.1f} s" + (" LATE" if row.is_late else "")
        told = shortened(row.told, 90, end="...")
        lost = row.harmed.upper() or "as before"
        cells.append((row.item, row.what, placed, str(row.restarts), row.memory, lost, told))
    return table(head, cells, right={"RESTARTS"})


if __name__ == "__main__":
    sys.exit(main())
