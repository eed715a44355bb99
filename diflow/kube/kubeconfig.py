"""Access to a cluster by a kubeconfig or by the service account of a pod.

Certificates change while a program runs: they are renewed each year, a cluster is made again, the kubelet replaces the
ones of a service account. So the files are read once more if the server and the program do not trust each other any
more.

The only module that imports the `kubernetes` package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diflow.common.errors import UnavailableError
from diflow.kube import refusals
from diflow.kube.refusals import Remedies

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_UNAUTHORIZED: Final = 401


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
    source = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    is_there = any(os.path.exists(os.path.expanduser(part)) for part in source.split(os.pathsep) if part)
    if is_there:
        login = _Login(source, context)
    elif kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        login = _Login("", None)
    else:
        raise UnavailableError(refusals.no_kubeconfig(source, named=bool(kubeconfig), remedies=remedies))
    return Access(
        login.server, login, login.authorise, login.namespace or "default", login.context or "", login.shown_source
    )


class _Login:
    """A kubeconfig's context, or the service account of this pod (`source` is ""), and its pool of connections.

    It is a transport: `request` is that of urllib3's PoolManager. If the server's certificate is not trusted, or the
    server does not know the login, and the files have changed since they were read, they are read again and the request
    is sent once more: it has not been carried out. They must name the same server: a program never goes over to another
    cluster by itself. Raises UnavailableError if the files cannot be used.
    """

    def __init__(self, source: str, context: str | None) -> None:
        self.server = ""
        self.context = context
        self._source = source
        self._lock = threading.Lock()
        self._read()

    @property
    def shown_source(self) -> str:
        return self._source or "the service account of this pod"

    def request(self, method: str, url: str, **options: Any) -> Any:
        from urllib3.exceptions import SSLError  # noqa: PLC0415 (comes with `kubernetes`, and is as slow to import)

        used = self._pool
        try:
            response = used.request(method, url, **options)
        except SSLError as error:
            # A write whose connection breaks off may have been carried out.
            if not (method == "GET" or refusals.is_distrust(error)) or not self._is_renewed(used):
                raise
        else:
            if response.status != _UNAUTHORIZED or not self._is_renewed(used):
                return response
            response.close()
        headers = {**options.pop("headers", {}), **self.authorise()}
        return self._pool.request(method, url, headers=headers, **options)

    def authorise(self) -> dict[str, str]:
        """The authentication headers."""
        # The kubelet renews a pod's token in place. The package rereads it once a minute of wall-clock time: it
        # would resend a rejected token, and raises its own errors while the file is missing.
        if fresh := _token(self._token_file):
            return {"Authorization": f"Bearer {fresh}"}
        token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"Authorization": token} if token else {}

    def _is_renewed(self, used: Any) -> bool:
        """Whether there is another pool of connections than the one that was `used`, as the files have changed."""
        with self._lock:
            if self._pool is used and self._stamp != _stamp(self._files):
                with suppress(UnavailableError):  # half written: the next request looks again
                    self._read()
            return self._pool is not used

    def _read(self) -> None:
        from kubernetes.client import ApiClient, Configuration  # noqa: PLC0415 (takes 0.4 s to import)

        configuration = Configuration()
        configuration.retries = False
        configuration.connection_pool_maxsize = 16
        files = [os.path.expanduser(part) for part in self._source.split(os.pathsep) if part]
        stamp = _stamp(files)
        context, namespace, token_file = self._load(configuration)
        if self.server not in ("", configuration.host):
            return
        certificates = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        named = [path for path in (*certificates, token_file) if path]
        self._stamp, self._files = stamp + _stamp(named), files + named
        self.server, self.context, self.namespace = configuration.host, context or None, namespace
        self._token_file, self._configuration = token_file, configuration
        self._pool = ApiClient(configuration).rest_client.pool_manager

    def _load(self, configuration: Configuration) -> tuple[str, str, str]:
        """(the context's name, its namespace or "", the file with the token or "")."""
        from kubernetes.config import ConfigException  # noqa: PLC0415

        try:
            if not self._source:
                return ("", *_load_service_account(configuration))
            return (*_load_kubeconfig(configuration, self._source, self.context), "")
        except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnavailableError(refusals.bad_kubeconfig(self.shown_source, error)) from None
        except Exception as error:
            if type(error).__module__.startswith("yaml"):
                raise UnavailableError(refusals.bad_kubeconfig(self.shown_source, error)) from None
            raise


def _stamp(files: Iterable[str]) -> tuple[object, ...]:
    """What changes when one of the files is written or replaced."""
    found: list[object] = []
    for path in files:
        try:
            state = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)


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
