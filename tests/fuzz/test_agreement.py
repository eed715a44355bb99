"""What `lint --cluster` accepts the API server accepts, and what it refuses the API server refuses, by dry runs.

A job that is accepted, by the rules that need no cluster and as PodTemplates, is rendered. Its Workflow and the Pods
that Argo's controller would make of it are created, with `dryRun=All` and unknown fields refused. Of a job that is
refused each task's template is created as it is, as a Pod and as a part of a Workflow: one of them must be refused as
well, unless the rule is diflow's or Argo's own (`OWN`).

DIFLOW_FUZZ_SPECS says how many jobs (150 by default); DIFLOW_FUZZ_SEED is the first one's seed.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
import requests

from diflow import DIJob, InvalidError, UnknownFieldWarning
from diflow.dijob.settings import RenderSettings
from diflow.jobs.checks import templates
from diflow.kube.api import Cluster
from diflow.workflows import render
from tests.clusters import TestCluster
from tests.fuzz.argopods import plain_pod, plain_workflow, pods
from tests.fuzz.dijobs import Maker

SPECS = int(os.environ.get("DIFLOW_FUZZ_SPECS", "150"))
SEED = int(os.environ.get("DIFLOW_FUZZ_SEED", "0"))
# Refused though the API server takes it: docs/lint.md says why.
OWN = re.compile(
    r"Argo would read it as a template|is used by Argo|Argo keeps its own files|Argo takes port|is set again after it"
    r"|set by (Argo|diflow)|is for Kubernetes itself|is worked out by Kubernetes|not known to the allocator"
    r"|NUL character|is named more than once|is for init containers alone|is listed more than once, or is diflow's own"
    r"|imagePullSecrets\[\d\]\.name: is (missing|empty)|at least 0, not -|has no source that diflow knows"
    r"|jobs, whose pods run on Linux|must be linux|must be Always, which makes it a sidecar"
    r"|(labels|annotations|matchLabels|nodeSelector|volumeAttributes)\.\S+: must be text, not empty"
)


_LOOKED_UP = re.compile(r"error looking up service account|no PriorityClass with name|RuntimeClass .* not found")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_REFERENCES = ("serviceAccountName", "serviceAccount", "priorityClassName", "runtimeClassName")


class DryRun:
    """Creates objects on an API server with `dryRun=All`."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        settings = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig), client_configuration=settings
        )
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = settings.ssl_ca_cert if settings.verify_ssl else False
        self.session.cert = (
            (settings.cert_file, settings.key_file) if settings.cert_file and settings.key_file else None
        )
        self.session.headers["Content-Type"] = "application/json"
        for value in settings.api_key.values():  # a token instead of a certificate
            self.session.headers["Authorization"] = value
        self.paths = {
            "Pod": f"{settings.host}/api/v1/namespaces/{namespace}/pods",
            "Workflow": f"{settings.host}/apis/argoproj.io/v1alpha1/namespaces/{namespace}/workflows",
        }

    def refusal(self, body: dict[str, Any], *, unknown_fields: str) -> str:
        """Why the API server refuses an object; "" if it takes it.

        An account or a class that is not there is looked up before the object is checked: what exists is not lint's,
        but none exists of a name that nothing may have.
        """
        said = self._post(body, unknown_fields=unknown_fields)
        if _LOOKED_UP.search(said):
            spec = {k: v for k, v in body["spec"].items() if k not in _REFERENCES or not _NAME.fullmatch(str(v))}
            said = self._post({**body, "spec": spec}, unknown_fields=unknown_fields)
        return said

    def _post(self, body: dict[str, Any], *, unknown_fields: str) -> str:
        answer = self.session.post(
            self.paths[body["kind"]],
            params={"dryRun": "All", "fieldValidation": unknown_fields},
            data=json.dumps(body),
            timeout=60,
        )
        if answer.status_code not in (400, 403, 422):
            answer.raise_for_status()
            return ""
        message = str(answer.json()["message"])
        assert "cannot create resource" not in message, message
        return message

    def of_job(self, workflow: dict[str, Any]) -> str:
        """Why a rendered Workflow or one of its pods would be refused."""
        why = self.refusal(workflow, unknown_fields="Strict")
        try:
            return why or next(filter(None, (self.refusal(p, unknown_fields="Strict") for p in pods(workflow))), "")
        except AssertionError as error:  # as in the error of Argo's controller
            return str(error)

    def of_template(self, template: Any, volumes: Any) -> str:
        """Why a template would be refused as it is."""
        if not isinstance(template, dict) or not isinstance(volumes, list):
            return "it is no mapping, or the volumes are no list"
        ways = (plain_pod(template, volumes), plain_workflow(template, volumes))
        return next(filter(None, (self.refusal(body, unknown_fields="Ignore") for body in ways)), "")


def rendered(manifest: dict[str, Any], *, cluster: Cluster | None = None) -> dict[str, Any]:
    """The Workflow of a job. Raises InvalidError, as `lint` does; with a cluster as `lint --cluster`."""
    job = DIJob.from_manifest(manifest)
    workflow = render(job, settings=RenderSettings())
    if cluster is not None:
        templates.check(cluster, job, namespace=job.namespace or "default", tell=pytest.fail)
    return workflow


def disagreement(server: DryRun, cluster: Cluster, manifest: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The results of lint and the API server for a job (`yes` or `no`), and their difference."""
    manifest["metadata"]["namespace"] = namespace
    try:
        workflow = rendered(manifest, cluster=cluster)
    except InvalidError as error:
        if OWN.search(str(error)):
            return "no by a rule of its own", ""
        tasks, volumes = manifest["spec"]["tasks"], manifest["spec"].get("volumes")
        shared = [] if volumes is None else volumes
        refusals = [server.of_template(task.get("template"), shared) for task in tasks]
        return "no", "" if any(refusals) else f"lint refuses: {error}"
    why = server.of_job(workflow)
    return "yes", why and f"lint accepts, the API server does not: {why}"


@pytest.mark.cluster
@pytest.mark.extended
def test_lint_and_the_api_server_agree(argo40: TestCluster) -> None:
    said: Counter[str] = Counter()
    differences: list[str] = []
    with argo40.namespace("lint") as namespace, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)
        server = DryRun(argo40.kubeconfig, namespace)
        for seed in range(SEED, SEED + SPECS):
            answer, difference = disagreement(server, argo40.api, Maker(seed).manifest(), namespace)
            said[answer] += 1
            if difference:
                print(f"seed {seed}: {difference}")  # noqa: T201
                differences.append(f"seed {seed}: {difference}")
    print(dict(said))  # noqa: T201
    assert differences == []
    assert said["yes"] > SPECS // 5
    assert said["no"] > SPECS // 5
    assert said["no by a rule of its own"] < SPECS // 10


@pytest.mark.cluster
@pytest.mark.extended
def test_argos_own_linter_accepts_what_lint_accepts(argo40: TestCluster, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)
        for seed in range(SEED, SEED + SPECS):
            manifest = Maker(seed).manifest()
            manifest["metadata"]["name"] = f"job-{seed}"
            with suppress(InvalidError):
                (tmp_path / f"{seed}.json").write_text(json.dumps(rendered(manifest)))
    assert len(list(tmp_path.iterdir())) > SPECS // 5
    assert "no linting errors" in argo40.run("argo", "lint", "--offline", "--strict", str(tmp_path))
