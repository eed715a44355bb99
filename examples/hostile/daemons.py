"""What diflow's own processes need: memory against their limit, and whether they were restarted."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from diflow.common import quantities
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD
from fakestage import SYSTEM
from stage import DemoError, Target

_MEMORY = re.compile(r"^process_resident_memory_bytes (\S+)", re.MULTILINE)
_OURS = "app.kubernetes.io/part-of=diflow"


@dataclass(frozen=True)
class Daemons:
    """All of them at one moment. `memory`: the largest part of its limit that one uses, and which, as text."""

    memory: float
    which: str
    restarts: int


def look(target: Target, cluster: Cluster) -> Daemons:
    """What they use now. A process whose page does not answer is left out."""
    used, restarts = [(0.0, "-")], 0
    for pod in cluster.list_all(POD, namespace=SYSTEM, labels=_OURS):
        name = pod["metadata"]["name"]
        restarts += sum(c.get("restartCount", 0) for c in pod["status"].get("containerStatuses") or ())
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        with suppress(DemoError):
            path = f"/api/v1/namespaces/{SYSTEM}/pods/{name}:8080/proxy/metrics"
            if found := _MEMORY.search(target.run_kubectl("get", "--raw", path)):
                limit = quantities.read(limits)["memory"]
                mebibytes = float(found[1]) / 2**20
                short = pod["metadata"]["labels"]["app.kubernetes.io/name"].removeprefix("diflow-")
                used.append((mebibytes / limit, f"{short} {mebibytes:.0f} of {limit} MiB"))
    most = max(used)
    return Daemons(most[0], most[1], restarts)
