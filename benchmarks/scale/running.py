"""1,000 running jobs of 5 pods: how soon a change is planned, and what a killed leader and a killed API server cost.

Jobs and pods are copies, as in `benchmarks.allocating`: Argo's controller is stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import datetime

from benchmarks import allocating, live
from benchmarks.allocating import Grown, quiet_argo
from benchmarks.figures import Figure
from benchmarks.scale.common import Json, allocator, kill_for, say
from benchmarks.watching import Watch
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE, POD, WORKFLOW
from tests.clusters import wait_until
from tests.e2e import installing
from tests.e2e.allocators import Daemon

LEASE_SECONDS = 15.0
BEYOND_SECONDS = 5.0
"""The aim: the first decision of the next leader, counted from the end of the Lease."""
STANDBY_SECONDS = 60.0
"""For a standby to fill its caches, before the leader is killed."""
OUTAGE_SECONDS = 60.0
CHANGES = 40


def measure(*, pods: int = 5000, rounds: int = 2, is_fenced: bool = True) -> list[Figure]:
    """The figures of this part; `rounds` kills of a leader."""
    with live.namespace("running") as (found, cluster, namespace), quiet_argo(found, namespace) as silence:
        grown = Grown(found, cluster, namespace)
        grown.keep_models()
        silence()
        grown.to(pods)
        pair = [allocator(found, namespace, f"allocator-{i}") for i in range(2)]
        try:
            pair[0].start()
            pair[0].until_leading()
            if is_fenced:
                installing.install_fence(found, home=namespace)
            wait_until("all pods run", lambda: not allocating.pending(cluster, namespace), timeout=1800, every=5.0)
            say(pods=pods, state="all run")
            whole, own, _ = allocating.replanned(grown, pair[0], CHANGES)
            say(planned_seconds=allocating.percentiles(whole), without_policy=allocating.percentiles(own))
            outage = _outage(grown, pair[0])
            pair[1].start()
            falls = []
            for number in range(rounds):
                time.sleep(STANDBY_SECONDS)
                falls.append(_fall(grown, pair, f"after-{number}"))
                say(**falls[-1])
                pair[0].log.write_text("")
                pair[0].start()
                pair.reverse()
        finally:
            for one in pair:
                one.stop()
    beyond = [float(one["beyond_the_lease_seconds"]) for one in falls]
    note = f"{len(grown.jobs)} jobs, {grown.pods} pods, {grown.nodes} nodes; load {os.getloadavg()[0]:.1f}"
    all_beyond = ", ".join(f"{value:.1f}" for value in beyond)
    return [
        Figure("running", "change → plan, p95", allocating.percentiles(whole)[1], "s", None, note),
        Figure("running", "change → plan, p95, without the policy", allocating.percentiles(own)[1], "s", 0.3),
        Figure("running", "leader killed: first decision after the Lease", max(beyond), "s", BEYOND_SECONDS,
               f"largest of {all_beyond}"),
        *outage,
    ]  # fmt: skip


# --- an API server that is killed -------------------------------------------------------------------------------------


def _outage(grown: Grown, daemon: Daemon) -> list[Figure]:
    """Kill the API server for a minute. Jobs, pods and retries must be the same after it."""
    before = _standing(grown)
    starts = _starts(daemon)
    kills = kill_for(grown.found, "kube-apiserver", OUTAGE_SECONDS)
    assert kills, "the API server was killed"
    back = time.monotonic()
    wait_until("the API server answers", lambda: bool(grown.found.kubectl("get", "--raw", "/readyz")), timeout=300)
    answered = time.monotonic() - back
    late = 0.0
    while time.monotonic() - back < 300:
        daemon_ended = daemon.process is None or daemon.process.poll() is not None
        if daemon_ended:  # as its Deployment would
            daemon.start()
        try:
            whole, _, _ = allocating.replanned(grown, daemon, 5)
        except (TimeoutError, OSError):
            continue
        late = max(whole)
        if late < 1.0:
            break
    recovered = time.monotonic() - back
    after = _standing(grown)
    lost = [name for name in before if name not in after]
    changed = [name for name in before if name in after and before[name] != after[name]]
    say(kills=kills, answers_after=round(answered, 1), recovered_after=round(recovered, 1), cycle=round(late, 2))
    return [
        Figure("running", "API server killed for 60 s: it answers again", answered, "s", None, f"{kills} kills"),
        Figure("running", "… until a change is planned in 1 s", recovered, "s", 60, "counted from the last kill"),
        Figure("running", "… pods lost", len(lost), "", 0, ", ".join(lost[:3])),
        Figure("running", "… pods replaced or moved", len(changed), "", 0, ", ".join(changed[:3])),
        Figure("running", "… allocators that had to be started again", _starts(daemon) - starts, "", None),
    ]


def _standing(grown: Grown) -> dict[str, str]:
    """Each running replica with its identity and node: a used retry, a lost job or a move changes it."""
    pods = grown.cluster.list_all(POD, namespace=grown.namespace, labels=keys.TASK_NAME, fields="status.phase=Running")
    return {
        pod["metadata"]["name"]: f"{pod['metadata']['uid']} on {pod['spec'].get('nodeName')}"
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
    }


def _starts(daemon: Daemon) -> int:
    return sum(line.get("event") == "started" for line in daemon.lines())


# --- a leader that is killed ------------------------------------------------------------------------------------------


def _fall(grown: Grown, pair: Sequence[Daemon], name: str) -> Json:
    """Kill the first of the two, and submit a job that nobody has decided on. Times count from the kill, and from the
    end of the Lease by its last renewal."""
    cluster: Cluster = grown.cluster
    holders = {line["identity"] for line in pair[0].lines() if line.get("event") == "leading"}
    lease = cluster.get(LEASE, keys.ALLOCATOR, namespace=grown.namespace)
    assert lease["spec"]["holderIdentity"] in holders, "the one that is to be killed leads"
    with Watch(cluster, grown.namespace, WORKFLOW, _is_placed) as placed:
        pair[0].kill()
        killed, wall = time.monotonic(), time.time()
        lease = cluster.get(LEASE, keys.ALLOCATOR, namespace=grown.namespace)
        ends = killed + datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp() - wall + LEASE_SECONDS
        grown.jobs.append(name)
        grown.copy(name, 0)
        decided = placed.until(f"{name} has its places", lambda seen: bool(seen.get(name)), timeout=300)
    wait_until("it runs", lambda: not allocating.pending(cluster, grown.namespace), timeout=300)
    events = {
        line["event"]: round(datetime.fromisoformat(line["timestamp"]).timestamp() - wall, 2)
        for line in reversed(pair[1].lines())
        if line.get("event") in ("leading", "jobs get the new epoch", "the former leader is fenced", "plan")
    }
    return {
        "killed_to_decided_seconds": round(decided - killed, 2),
        "beyond_the_lease_seconds": round(decided - ends, 2),
        "after_the_kill": events,
    }


def _is_placed(workflow: Json) -> str:
    at = json.loads((workflow["metadata"].get("annotations") or {}).get(keys.ALLOCATION) or "{}")
    return "yes" if any(at.get("nodes", {}).values()) else ""
