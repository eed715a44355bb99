"""Access to a cluster by a kubeconfig or by the service account of a pod.

The only module that imports the `kubernetes` package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diflow.common.errors import UnavailableError
from diflow.kube import refusals
from diflow.kube.refusals import Remedies

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster. `authorise` returns the authentication headers; `source` is where this was found."""

    server: str
    transport: Any
    authorise: Callable[[], Mapping[str, str]]
    namespace: str
    context: str
    source: str


def access(kubeconfig: str | None, *, context: str | None, remedies: Remedies) -> Access:
    """The access of a kubeconfig (None: $KUBECONFIG or ~/.kube/config), else that of the service account.

    Raises UnavailableError if there is no usable kubeconfig.
    """
    from kubernetes.client import ApiClient, Configuration  # noqa: PLC0415 (takes 0.4 s to import)
    from kubernetes.config import ConfigException  # noqa: PLC0415

    configuration = Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = 16
    source = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    is_there = any(os.path.exists(os.path.expanduser(part)) for part in source.split(os.pathsep) if part)
    name, namespace, token_file = "", "", ""
    try:
        if is_there:
            name, namespace = _load_kubeconfig(configuration, source, context)
        elif kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            namespace, token_file = _load_service_account(configuration)
            source = "the service account of this pod"
        else:
            raise UnavailableError(refusals.no_kubeconfig(source, named=bool(kubeconfig), remedies=remedies))
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnavailableError(refusals.bad_kubeconfig(source, error)) from None
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise UnavailableError(refusals.bad_kubeconfig(source, error)) from None
        raise

    def authorise() -> dict[str, str]:
        # The kubelet renews a pod's token in place. The package rereads it once a minute of wall-clock time: it
        # would resend a rejected token, and raises its own errors while the file is missing.
        if fresh := _token(token_file):
            return {"Authorization": f"Bearer {fresh}"}
        token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"Authorization": token} if token else {}

    pool = ApiClient(configuration).rest_client.pool_manager
    return Access(configuration.host, pool, authorise, namespace or "default", name, source)


def _load_kubeconfig(configuration: Configuration, source: str, context: str | None) -> tuple[str, str]:
    """(the name of the context, its namespace or "")."""
    from kubernetes.config import list_kube_config_contexts, load_kube_config  # noqa: PLC0415

    load_kube_config(  # type: ignore[no-untyped-call]
        source, context=context, client_configuration=configuration, persist_config=False
    )
    contexts, current = list_kube_config_contexts(source)  # type: ignore[no-untyped-call]
    active = next((c for c in contexts if c["name"] == context), current) if context else current
    return str(active.get("name") or ""), (active.get("context") or {}).get("namespace") or ""


def _load_service_account(configuration: Configuration) -> tuple[str, str]:
    """(the namespace of the pod, the file with its token)."""
    from kubernetes.config import load_incluster_config  # noqa: PLC0415

    load_incluster_config(  # type: ignore[no-untyped-call]
        client_configuration=configuration, try_refresh_token=False
    )
    with open(f"{_SERVICE_ACCOUNT}/namespace", encoding="utf-8") as file:
        return file.read().strip(), f"{_SERVICE_ACCOUNT}/token"


def _token(path: str) -> str:
    """The token in a file; "" if it is missing, as while the kubelet replaces it."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""
