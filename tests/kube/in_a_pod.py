"""A process that looks like a pod of the fake cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.config import incluster_config

from tests.kube.fakeapi import FakeApi


def as_in_a_pod(patch: pytest.MonkeyPatch, api: FakeApi, folder: Path, *, namespace: str) -> None:
    """The service account is in `folder`, without a token yet."""
    (folder / "ca.crt").write_text("a certificate")
    (folder / "namespace").write_text(namespace)
    host, _, port = api.url.removeprefix("http://").partition(":")
    patch.setenv("HOME", str(folder))
    patch.delenv("KUBECONFIG", raising=False)
    patch.setenv("KUBERNETES_SERVICE_HOST", host)
    patch.setenv("KUBERNETES_SERVICE_PORT", port)
    patch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    patch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    patch.setattr("diflow.kube.kubeconfig._SERVICE_ACCOUNT", str(folder))
