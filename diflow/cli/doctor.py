"""Commands about diflow and its environment: doctor, version, completion."""

from __future__ import annotations

import itertools
import platform
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from diflow.cli.console import colours, note, paint, say
from diflow.cli.options import Context, Kubeconfig, Namespace, connect
from diflow.common.words import counted
from diflow.version import __version__

if TYPE_CHECKING:
    from diflow.jobs.checks.doctor import Finding
    from diflow.kube.api import Cluster


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def doctor(
    *,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Also measure what diflow relies on in Argo (takes minutes)."),
    ] = False,
    probe_image: Annotated[
        str | None,
        typer.Option("--probe-image", help="The image of the probe's pods; it must have a shell.", show_default=False),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Check that jobs can run in the cluster: RBAC, CRDs, Argo's version, service accounts, priority classes, clocks.

    Exits with 5 if something is missing. Each line says what to do.
    """
    from diflow.jobs.checks.doctor import examine  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    say(f"cluster {cluster.context or '(in-cluster)'} at {cluster.target.server}, namespace {cluster.namespace}")
    findings = []
    for finding in itertools.chain(examine(cluster), _probe(cluster, probe_image) if probe else ()):
        findings.append(finding)
        say(verdict(finding))
    bad = sum(not finding.ok for finding in findings)
    say(_total(findings))
    return 5 if bad else 0


def _total(findings: list[Finding]) -> str:
    """The last line: how many checks failed or passed, and how many were not made."""
    bad, unknown = sum(not one.ok for one in findings), sum(one.ok and not one.is_known for one in findings)
    rest = f"; {counted(unknown, 'check')} not made (–)" if unknown else ""
    if bad:
        return f"{bad} of {len(findings)} checks failed{rest}"
    return f"{len(findings) - unknown} checks passed{rest}" if unknown else f"all {len(findings)} checks passed"


def verdict(finding: Finding) -> str:
    """The line for a finding."""
    on = colours(sys.stdout)
    mark = paint("✓", "green", on=on) if finding.ok else paint("✗", "red", on=on)
    if finding.advice:
        mark = paint("!", "yellow", on=on)
    if not finding.is_known:
        mark = "–"
    detail = f": {finding.detail}" if finding.detail else ""
    remedy = finding.advice if finding.ok else finding.remedy
    return f"{mark} {finding.what}{detail}" + (f"\n    → {remedy}" if remedy else "")


def _probe(cluster: Cluster, image: str | None) -> Iterator[Finding]:
    from diflow.common.errors import DiflowError  # noqa: PLC0415
    from diflow.jobs.checks.doctor import Finding  # noqa: PLC0415

    try:
        from diflow.labs import conformance  # noqa: PLC0415 (only here, and only when it is asked for)
    except ImportError:
        yield Finding("conformance probe", ok=True, detail="skipped, as this installation does not have it")
        return
    note("measuring what diflow relies on in Argo; this takes a minute or two ...")
    try:
        settings = conformance.ProbeSettings(image=image) if image else None
        found = conformance.probe(cluster, cluster.namespace, settings=settings)
    except DiflowError as error:
        yield Finding("conformance probe", ok=False, detail=str(error), remedy="correct the failures above first")
        return
    for fact in found:
        yield Finding(
            f"Argo, fact {fact.fact}: {fact.title}",
            ok=fact.ok,
            detail=fact.detail,
            remedy="--probe-image names an image with a shell that the nodes can get"
            if "cannot start" in fact.detail
            else "this Argo does not behave as diflow needs: use a version that diflow is tested with",
        )


def version(
    *,
    client: Annotated[bool, typer.Option("--client", help="Do not ask the cluster.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the versions of diflow, Kubernetes and Argo Workflows."""
    say(f"diflow {__version__} (Python {platform.python_version()})")
    if client:
        return
    from diflow.common.errors import DiflowError  # noqa: PLC0415
    from diflow.jobs.checks import prerequisites  # noqa: PLC0415

    try:
        cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
        say(f"Kubernetes {cluster.version()}")
        found = prerequisites.controller_version(cluster)
        say(f"Argo Workflows {prerequisites.version_text(found) if found else 'unknown'}")
    except DiflowError as error:
        note(f"(the cluster was not asked: {error})")


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script for your shell that completes diflow's commands, options and jobs.

    For bash: mkdir -p ~/.local/share/bash-completion/completions; diflow completion bash >
    ~/.local/share/bash-completion/completions/diflow
    """
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 (typer offers it nowhere else)

    say(get_completion_script(prog_name="diflow", complete_var="_DIFLOW_COMPLETE", shell=shell.value))
