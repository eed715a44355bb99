"""Commands on manifests: submit, render, lint."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diflow.cli.console import note, once, say, warn
from diflow.cli.options import Context, Kubeconfig, Namespace, Timeout, connect, detaching, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diflow.cli.loading import Source as FromFile
    from diflow.dijob.model import DIJob
    from diflow.jobs.checks.templates import Tell
    from diflow.kube.api import Cluster

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE|module:name",
        help="A DIJob in YAML (- is standard input), or a Python variable that holds one.",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="All jobs of a file that holds several.")]
_ALL = ", or take all with --all"
NewName = Annotated[str | None, typer.Option("--name", help="Another name for the job.", show_default=False)]


class Form(StrEnum):
    """As what a job is submitted."""

    WORKFLOW = "workflow"
    DIJOB = "dijob"


class DryRun(StrEnum):
    """Where a dry run takes place."""

    CLIENT = "client"
    SERVER = "server"


def submit(
    source: Source,
    *,
    name: NewName = None,
    every: Every = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Then show the job live until it ends.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Then wait until the job has ended.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Then print all its logs until it ends.")] = False,
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            help="Create a Workflow, or a DIJob object, of which the controller makes one (docs/controller.md).",
        ),
    ] = Form.WORKFLOW,
    dry_run: Annotated[
        DryRun | None,
        typer.Option(
            "--dry-run",
            help="Send nothing and print the Workflow (or the DIJob); `server` lets the cluster check it.",
            show_default=False,
        ),
    ] = None,
    timeout: Timeout = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Submit a job.

    Nothing is created unless everything is valid. Prints the job's name. Other objects in the file are listed on stderr
    and left to kubectl.
    """
    from diflow.cli.loading import load_all  # noqa: PLC0415

    limit = seconds(timeout, option="--timeout")
    if sum((watch, wait, logs)) > 1:
        raise typer.BadParameter("choose one of --watch, --wait and --logs")
    wanted = load_all(source, name=name, namespace=namespace, every=every, hint=_ALL)
    if len(wanted) > 1 and (watch or wait or logs):
        raise typer.BadParameter(f"--watch, --wait and --logs follow one job, and {source} holds {len(wanted)}")
    if dry_run is DryRun.CLIENT:
        _print(wanted, form)
        return 0
    only = wanted[0] if len(wanted) == 1 else None
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=only.namespace if only else namespace)
    tell = once(note)
    is_only_check = dry_run is DryRun.SERVER
    if is_only_check or only is None:  # of several, none is created if one is rejected
        checked = [_create(job, cluster, form, tell=tell, dry_run=True, waits=not is_only_check) for job in wanted]
        if is_only_check:
            _print(checked, form)
            _tell_accepted(checked)
            return 0
    placed = _create_all(wanted, cluster, form, tell=tell)
    if not (watch or wait or logs):
        _tell_next(placed)
        return 0
    with detaching(placed[0].name, cluster):
        return _follow(placed[0].name, cluster, watch=watch, logs=logs, limit=limit)


def _create_all(jobs: Sequence[DIJob], cluster: Cluster, form: Form, *, tell: Tell) -> list[DIJob]:
    """Create these jobs and print their names; before that, warn of what they lack for the server."""
    from diflow.jobs.checks import unproven  # noqa: PLC0415

    for job in jobs:
        if trouble := unproven.warning(job, cluster):
            warn(trouble)
    placed = []
    for job in jobs:
        placed.append(_create(job, cluster, form, tell=tell))
        say(placed[-1].name)
    return placed


def _create(
    job: DIJob, cluster: Cluster, form: Form, *, tell: Tell, dry_run: bool = False, waits: bool = True
) -> DIJob:
    """Create the job's Workflow or its DIJob object. Returns the job with its namespace. `tell` is told why the pod
    templates were not checked. `waits`: for the pods of an earlier Workflow of its name."""
    from diflow.jobs import dijobs, earlier_pods, submit  # noqa: PLC0415
    from diflow.jobs.checks import admission, templates  # noqa: PLC0415

    check_templates = partial(templates.check, tell=tell)

    def wait_for_pods(cluster: Cluster, name: str, *, namespace: str) -> None:
        limit = f"(for up to {earlier_pods.WAIT_SECONDS:.0f} s)"
        earlier_pods.wait(cluster, name, namespace=namespace, on_wait=lambda why: note(f"waits {limit}: {why}"))

    def tell_of_pods(cluster: Cluster, name: str, *, namespace: str) -> None:
        try:
            earlier_pods.check(cluster, name, namespace=namespace)
        except earlier_pods.EarlierPodsError as error:
            note(f"job {name} would wait: {error}")

    if form is Form.WORKFLOW:
        is_first_check = dry_run and waits  # the notes follow when it is created
        return submit.submit(
            job,
            cluster=cluster,
            dry_run=dry_run,
            checks=submit.Checks(
                templates=check_templates,
                pods=wait_for_pods if waits else tell_of_pods,
                refusals=(lambda *_, **__: ()) if is_first_check else admission.refusals,
            ),
            on_note=(lambda _: None) if is_first_check else note,
        )
    namespace = job.namespace or cluster.namespace
    placed = job.model_copy(update={"namespace": namespace})
    check_templates(cluster, placed, namespace=namespace)
    dijobs.create(placed, cluster=cluster, dry_run=dry_run)
    return placed


def _tell_accepted(jobs: Sequence[DIJob]) -> None:
    named = ", ".join(job.name for job in jobs)
    note(f"the cluster would accept {'job' if len(jobs) == 1 else 'the jobs'} {named}; nothing was created")


def _tell_next(jobs: Sequence[DIJob]) -> None:
    """Which commands show the jobs that were submitted."""
    if len(jobs) > 1:
        note(f"submitted {len(jobs)} jobs; next: diflow list")
        return
    name, where = jobs[0].name, f"-n {jobs[0].namespace}"
    note(f"submitted; next: diflow watch {name} {where}   diflow logs -f {name} {where}")


def _follow(name: str, cluster: Cluster, *, watch: bool, logs: bool, limit: float | None) -> int:
    """Watch the job, print its logs or wait for it, until it ends. Returns the exit code."""
    if watch:
        from diflow.cli.following import show  # noqa: PLC0415

        return show(cluster, name, limit=limit)
    if logs:
        from diflow.cli.logs import Wanted, stream  # noqa: PLC0415

        return stream(cluster, name, Wanted(), limit=limit)
    from diflow.jobs import wait  # noqa: PLC0415

    status = wait.wait(name, cluster=cluster, timeout_seconds=limit)
    note(f"{status.phase}: {status.message}")
    return 0


def render(source: Source, *, name: NewName = None, every: Every = False, namespace: Namespace = None) -> None:
    """Print the Argo Workflow of a job as YAML for `argo submit`. Needs no cluster."""
    from diflow.cli.loading import load_all  # noqa: PLC0415

    _print_workflows(load_all(source, name=name, namespace=namespace, every=every, hint=_ALL))


def lint(
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE|module:name...", help="DIJobs in YAML, or Python variables.")
    ],
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Let a cluster check the pod templates and the queue, too; nothing is created."),
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Check jobs without a cluster: fields and their types, names, the rules of Argo, and frequent mistakes.

    What else Kubernetes would refuse is found with --cluster, as by `diflow submit`. All jobs of a file are checked.
    Exits with 2 if a job is invalid.
    """
    check_templates = _asking(kubeconfig, context, namespace) if cluster else None
    good = [_lint(source, check_templates, namespace=namespace, strict=strict) for source in sources]
    return 0 if all(good) else 2


def _lint(
    source: str, check_templates: Callable[[FromFile, DIJob], None] | None, *, namespace: str | None, strict: bool
) -> bool:
    """Check the jobs of a file, and print what is found. Returns whether all are valid."""
    from diflow.cli.console import complain  # noqa: PLC0415
    from diflow.cli.loading import check_names, tell_left  # noqa: PLC0415
    from diflow.cli.loading import sources as find  # noqa: PLC0415
    from diflow.common.errors import InvalidError  # noqa: PLC0415
    from diflow.workflows import render as render_workflow  # noqa: PLC0415

    def wrong(error: InvalidError) -> None:
        text = str(error)
        complain(text if text.startswith(source) else f"{source}: {text}")

    try:
        jobs, left = find(source)
    except InvalidError as error:
        wrong(error)
        return False
    is_good = True
    seen: set[tuple[str | None, str]] = set()
    for one in jobs:
        found: list[str] = []
        try:
            job = one.load(namespace=namespace, warned=found)
            check_names(source, job, seen)
            render_workflow(job)
            if check_templates is not None:
                check_templates(one, job)
            found += advice(job)
        except InvalidError as error:
            wrong(error)
            is_good = False
            continue
        finally:  # an unknown field often explains the error
            for text in found:
                warn(f"{source}: {text}")
        if found and strict:
            is_good = False
        else:
            say(f"{source}: ok ({job.name})")
    tell_left(source, left)
    return is_good


def _asking(kubeconfig: str | None, context: str | None, namespace: str | None) -> Callable[[FromFile, DIJob], None]:
    """What lets the cluster check the pod templates of a job. If the cluster cannot do that, it is said once."""
    from diflow.common.errors import DiflowError, InvalidError, UnavailableError  # noqa: PLC0415
    from diflow.jobs import submit  # noqa: PLC0415
    from diflow.jobs.checks import templates  # noqa: PLC0415

    tell = once(warn)
    cluster: Cluster | None = None
    try:
        cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    except DiflowError as error:
        tell(templates.UNASKED.format(error))

    def check(one: FromFile, job: DIJob) -> None:
        nonlocal cluster
        if cluster is None:
            return
        try:
            submit.check_queue_of(job, cluster=cluster, on_note=tell)
            templates.check(cluster, job, namespace=job.namespace or cluster.namespace, tell=tell)
        except InvalidError as error:
            raise one.in_file(error) from None
        except DiflowError as error:
            tell(templates.UNASKED.format(error))
            if isinstance(error, UnavailableError):
                cluster = None

    return check


def advice(job: DIJob) -> list[str]:
    """Warnings about valid settings that are seldom intended."""
    found: list[str] = []
    for i, task in enumerate(job.tasks):
        path = f"spec.tasks[{i}]"
        containers: list[dict[str, Any]] = task.template["spec"]["containers"]
        for j, container in enumerate(containers):
            where = f"{path}.template.spec.containers[{j}]"
            if not container.get("command"):
                found.append(
                    f"{where} has no command: Argo must then ask the registry for the image's entrypoint, which fails "
                    "for images that only the nodes have"
                )
            image = str(container.get("image") or "")
            if not image:
                found.append(f"{where} has no image")
            elif image.rsplit("/", 1)[-1].partition(":")[2] in ("", "latest") and "@" not in image:
                found.append(f"{where}: the image {image} has no fixed tag, so replicas may run different code")
        if (task.min_replicas is not None or task.max_replicas is not None) and not job.preemptible:
            found.append(f"{path} has minReplicas or maxReplicas, which only a preemptible job makes full use of")
    return found


def _print(jobs: Sequence[DIJob], form: Form) -> None:
    (_print_workflows if form is Form.WORKFLOW else _print_dijobs)(jobs)


def _print_dijobs(jobs: Sequence[DIJob]) -> None:
    import sys  # noqa: PLC0415

    sys.stdout.write("---\n".join([job.to_yaml() for job in jobs]))


def _print_workflows(jobs: Sequence[DIJob]) -> None:
    import sys  # noqa: PLC0415

    from diflow.cli.console import encodes  # noqa: PLC0415
    from diflow.workflows import to_yaml  # noqa: PLC0415

    text = "---\n".join([to_yaml(job) for job in jobs])
    if not encodes(sys.stdout, text):
        from diflow.dijob.yamltext import dump_yaml  # noqa: PLC0415
        from diflow.workflows import render as render_workflow  # noqa: PLC0415

        text = "---\n".join([dump_yaml(render_workflow(job), ascii_only=True) for job in jobs])
    sys.stdout.write(text)
