"""Starts a cluster again whose processes are gone, as after a restart of the machine; if it cannot, makes it anew.

Nothing is lost in silence. A cluster that is started again has all that it held, and its pods are started again or
fail, as on any node that was restarted. One that is made anew has lost its jobs, and says so; where its volumes hold
files, the user decides.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster import argo, lifecycle
from cluster.errors import ClusterError
from cluster.plan import Plan
from cluster.progress import Progress

_ARGO_SECONDS = 300.0


def repair(name: str, make: Callable[[], Plan], progress: Progress) -> Plan:
    """Repairs a stopped cluster; `make` makes one of this name. The caller holds its lock."""
    if lifecycle.is_of_another_machine(name):
        raise ClusterError(
            f"cluster {name!r} was started by another machine, which shares this folder of clusters: take another "
            f"--name, or, if that machine is no more, python3 -m cluster down --name {name} removes it"
        )
    if not lifecycle.was_started(name):
        progress(f"{name}: the last start did not get far: it begins anew")
        lifecycle.stop(name, progress)
        return make()
    why = lifecycle.why_stopped(name)
    progress(f"{name}: its processes are gone ({why}): it is started again")
    try:
        plan = lifecycle.load(name)
        lifecycle.resume(plan, progress)
    except ClusterError as error:
        return _anew(name, str(error), make, progress)
    if plan.argo != "none" and (plan.paths.root / "furnished").exists():
        argo.restart(lifecycle.kubectl(plan), plan.argo, progress, timeout_seconds=_ARGO_SECONDS)
    progress(f"{name}: started again, with all that it held; pods that ran have been ended, as by a node's restart")
    return plan


def _anew(name: str, why: str, make: Callable[[], Plan], progress: Progress) -> Plan:
    kept = lifecycle.files_in_volumes(name)
    if kept:
        raise ClusterError(
            f"cluster {name!r} could not be started again: {why}. Volumes of its pods hold files, such as {kept[0]}: "
            f"save those that you need; then python3 -m cluster down --name {name} removes it"
        )
    progress(f"{name}: could not be started again: {why}")
    lifecycle.stop(name, progress)
    plan = make()
    progress(f"{name}: MADE ANEW: the jobs, images and settings of the former cluster are gone; submit jobs again")
    return plan
