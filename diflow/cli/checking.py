"""Commands about diflow and its environment: doctor, version, completion."""

from __future__ import annotations

import platform
from enum import StrEnum
from typing import Annotated

import typer

from diflow.cli.console import say
from diflow.cli.options import Context, Kubeconfig, Namespace, connect
from diflow.version import __version__


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
    from diflow.cli.examination import examine, verdict  # noqa: PLC0415

    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    say(f"cluster {cluster.context or '(in-cluster)'} at {cluster.target.server}, namespace {cluster.namespace}")
    findings = []
    for finding in examine(cluster, probe=probe, image=probe_image):
        findings.append(finding)
        say(verdict(finding))
    bad = sum(not finding.ok for finding in findings)
    say(f"{bad} of {len(findings)} checks failed" if bad else f"all {len(findings)} checks passed")
    return 5 if bad else 0


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
    from diflow.cli.console import note  # noqa: PLC0415
    from diflow.errors import DiflowError  # noqa: PLC0415
    from diflow.jobs import prerequisites  # noqa: PLC0415

    try:
        cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
        say(f"Kubernetes {cluster.version()}")
        found = prerequisites.controller_version(cluster)
        say(f"Argo Workflows {prerequisites.version_text(found) if found else 'unknown'}")
    except DiflowError as error:
        note(f"(the cluster was not asked: {error})")


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script for your shell that completes diflow's commands, options and jobs.

    For bash: diflow completion bash > ~/.local/share/bash-completion/completions/diflow
    """
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 (typer offers it nowhere else)

    say(get_completion_script(prog_name="diflow", complete_var="_DIFLOW_COMPLETE", shell=shell.value))
