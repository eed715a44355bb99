"""The command `scale`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import note, say, warn
from diflow.cli.options import Context, JobName, Kubeconfig, Namespace, Timeout, connect, detaching, resolve, seconds
from diflow.common.words import counted

if TYPE_CHECKING:
    from diflow.jobs.follow import FollowedJob
    from diflow.jobs.scale import Scaled
    from diflow.kube.api import Cluster


def scale(
    job: JobName,
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="Which task (default: the only one, or the only one that scales)."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="The number; for a preemptible job, the maximum.")
    ] = None,
    low: Annotated[int | None, typer.Option("--min", help="A preemptible job: never fewer than this.")] = None,
    high: Annotated[int | None, typer.Option("--max", help="A preemptible job: never more than this.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the requested replicas are ready and all others have ended.")
    ] = False,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Request another number of replicas for a running or waiting job.

    The allocator acts on it. A job that is not preemptible gains or loses only the difference, highest ranks first; a
    preemptible one restarts with the new number. With --wait, the command prints what is still missing, and returns 0
    when as many replicas as requested are granted and ready, or have succeeded, and no other pods of the task are left.
    """
    limit = seconds(timeout, option="--timeout")
    if (replicas is None) == (low is None and high is None):
        raise typer.BadParameter("give either --replicas, or --min, --max or both")
    from diflow.jobs.scale import scale as ask  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = resolve(job, cluster)
    done = ask(name, task=task, replicas=replicas, low=low, high=high, cluster=cluster)
    if done.before == done.after:
        say(f"{name}/{done.task}: {counted(done.after.text(), 'replica is', plural='replicas are')} requested already")
    else:
        say(f"{name}/{done.task}: {done.before.text()} → {counted(done.after.text(), 'replica')}")
    if done.outdated:
        note(
            f"running replicas of {' and '.join(done.outdated)} keep the DI_RANK that they started with, which another "
            "replica may get now: their rank of now is in /etc/diflow/rank, and DI_TASK_RANK never changes"
        )
    _say_who_acts(cluster)
    if wait:
        with detaching(name, cluster):
            _wait(cluster, name, done, limit)


def _say_who_acts(cluster: Cluster) -> None:
    import time  # noqa: PLC0415

    from diflow.allocator.run.control_channel import read_status  # noqa: PLC0415

    seen = read_status(cluster, now=time.time())
    if seen.paused:
        warn(f"the allocator is paused by {seen.paused}: it acts on this when it is resumed")
    elif not seen.unknown and not seen.is_running:
        warn(f"no allocator runs now{seen.where}: this is acted on when one does")


def _wait(cluster: Cluster, name: str, asked: Scaled, limit: float | None) -> None:
    from diflow.common.errors import ConflictError, NotFoundError  # noqa: PLC0415
    from diflow.jobs.follow import follow  # noqa: PLC0415

    reported = ""
    for snapshot in follow(cluster, name, seconds=limit):
        if snapshot.workflow is None:
            raise NotFoundError(f"job {name} was deleted meanwhile")
        missing, count = (snapshot.trouble, 0) if snapshot.trouble else _missing(snapshot, asked)
        if not missing:
            low, high = asked.after.low, asked.after.high
            note(f"{name}/{asked.task}: {_are(count)} ready, as requested{f' ({low} to {high})' if low < high else ''}")
            return
        if (record := snapshot.seen.job).has_ended:
            raise ConflictError(f"job {name} has ended meanwhile ({record.argo.phase})")
        if missing != reported:
            reported = missing
            note(f"waiting: {missing}")
    raise TimeoutError(f"{name}/{asked.task} does not have the requested replicas after {limit:g} s: {reported}")


def _missing(snapshot: FollowedJob, asked: Scaled) -> tuple[str, int]:
    """What is not as requested yet, or "", and how many replicas are granted."""
    seen, task, want = snapshot.seen, asked.task, asked.after
    wanted = {key for key in seen.wanted if key[0] == task}
    latest = seen.latest()
    ready = [key for key in wanted if key in latest and (latest[key].is_ready or latest[key].phase == "Succeeded")]
    why, count = snapshot.status.message, len(wanted)
    if not want.low <= count <= want.high:
        return f"{_are(count, task)} granted, and {want.text()} requested; {why}", count
    if len(ready) < count:
        return f"{len(ready)} of {_are(count, task)} ready; {why}", count
    old = sum(a.task == task and a.phase in ("Pending", "Running") and seen.was_released(a) for a in seen.attempts)
    return f"{_are(old, task)} still ending, and no longer wanted" if old else "", count


def _are(number: int, task: str = "") -> str:
    what = f"{task} replica".lstrip()
    return counted(number, f"{what} is", plural=f"{what}s are")
