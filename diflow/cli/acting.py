"""Commands that change an existing job: suspend, resume, stop, retry, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import note
from diflow.cli.options import Context, JobName, Kubeconfig, Namespace, complete_job, connect, resolve

if TYPE_CHECKING:
    from diflow.kube.api import Cluster


def suspend(
    job: JobName, *, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None
) -> None:
    """Suspend a job: Argo starts no more of its pods. Running pods continue."""
    from diflow.jobs import suspend  # noqa: PLC0415

    cluster, name = _find(job, namespace=namespace, context=context, kubeconfig=kubeconfig)
    suspend.suspend(name, cluster=cluster)
    note(f"{name} is suspended; diflow resume {name} -n {cluster.namespace} resumes it")


def resume(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="The job's name; none: the allocator.",
            autocompletion=complete_job,
            show_default=False,
        ),
    ] = None,
    *,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Resume a suspended job; without a job, the allocator after `diflow pause`.

    Without a job, -n is the allocator's namespace (default: the one that it publishes).
    """
    from diflow.jobs import suspend  # noqa: PLC0415

    if job is None:
        from diflow.allocator.run import control_channel  # noqa: PLC0415

        cluster = connect(kubeconfig=kubeconfig, context=context, namespace=None)
        paused = control_channel.resume(cluster, namespace=namespace or control_channel.home(cluster)[0])
        note(f"the allocator is resumed (it was paused by {paused})" if paused else "the allocator was not paused")
        return
    cluster, name = _find(job, namespace=namespace, context=context, kubeconfig=kubeconfig)
    was_suspended = suspend.resume(name, cluster=cluster)
    note(f"{name} is resumed" if was_suspended else f"{name} was not suspended")


def stop(
    job: JobName,
    *,
    now: Annotated[bool, typer.Option("--now", help="End the Workflow as `argo terminate` does.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """End a job: its containers get SIGTERM and their grace period, and the job ends Failed.

    Pods that ignore SIGTERM are stopped by their nodes after that. Of a job that has ended, those that still run are.
    """
    from diflow.common.words import counted  # noqa: PLC0415
    from diflow.jobs import suspend  # noqa: PLC0415

    cluster, name = _find(job, namespace=namespace, context=context, kubeconfig=kubeconfig)
    done = suspend.stop(name, cluster=cluster, at_once=now)
    if done.had_ended:
        still = "runs and is" if done.late == 1 else "run and are"
        note(f"{name} has ended already; {counted(done.late, 'pod')} of it still {still} stopped by the kubelet")
        return
    note(f"{name} is being stopped")
    if done.refused:
        note(f"its pods get no deadline, and one that ignores SIGTERM runs until the job is deleted: {done.refused}")


def retry(job: JobName, *, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """Run the failed replicas of a failed job again. Succeeded ones are kept."""
    from diflow.jobs import retry  # noqa: PLC0415

    cluster, name = _find(job, namespace=namespace, context=context, kubeconfig=kubeconfig)
    retry.retry(name, cluster=cluster)
    note(f"{name} runs again; diflow watch {name} -n {cluster.namespace}")


def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Jobs by name; @latest is the newest one.", autocompletion=complete_job),
    ],
    *,
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="A job that does not exist is not an error.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job is gone.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete jobs with their pods."""
    from diflow.common.errors import NotFoundError  # noqa: PLC0415
    from diflow.jobs.delete import delete, staying  # noqa: PLC0415
    from diflow.jobs.wait import wait_deleted  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    missing = []
    for given in names:
        try:
            name = resolve(given, cluster)
            stays = staying(name, cluster=cluster)
            found = delete(name, cluster=cluster)
        except NotFoundError:
            if not ignore_not_found:
                raise
            continue
        if found and stays:
            note(f"the DIJob {name} is deleted; {stays}")
        elif found:
            if wait:
                wait_deleted(name, cluster=cluster)
            note(f"{name} is deleted")
        else:
            missing.append(name)
    if missing and not ignore_not_found:
        raise NotFoundError(f"there is no job {', '.join(missing)} in the namespace {cluster.namespace!r}")


def _find(job: str, *, namespace: str | None, context: str | None, kubeconfig: str | None) -> tuple[Cluster, str]:
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    return cluster, resolve(job, cluster)
