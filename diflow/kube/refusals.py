"""Maps a rejected or failed request to an error of `diflow.common.errors`, with one line that says what to do.

It knows the API server's responses, but not how they are fetched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    NoNamespaceError,
    NotFoundError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
)
from diflow.kube.kinds import WORKFLOW

# Messages of etcd, and of the API server's connection to it.
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
# The field of a cause that is about the whole object.
_NO_FIELD = "<nil>"
# What both sides say of certificates and protocols, which only a change of either mends. Another handshake that fails
# is one that was broken off, as by an API server or a load balancer that restarts.
_DISTRUST = re.compile(
    r"certificate|unknown.ca|access.denied|http.request|wrong.version|unsupported.protocol|protocol.version"
    r"|no.protocols|handshake.failure|no.shared|insufficient.security|unrecognized.name|hostname|doesn't match",
    re.IGNORECASE,
)
# Longer responses of a server are truncated, as they are shown in one line.
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class Remedies:
    """What the users of a program can do about some errors, in the words of that program: the ends of messages."""

    no_argo: str = "Install it"
    """A sentence."""
    no_right: str = ""
    """Follows "ask the cluster's administrator for it"."""
    no_kubeconfig: str = ""
    """Follows "Set KUBECONFIG or give --kubeconfig"."""


NO_REMEDIES: Final = Remedies()


@dataclass(frozen=True, slots=True)
class Target:
    """The API server, and the kubeconfig that names it."""

    server: str
    source: str = ""
    remedies: Remedies = NO_REMEDIES

    @property
    def kubeconfig(self) -> str:
        """The kubeconfig as messages name it."""
        return f"the kubeconfig {self.source}" if self.source else "the kubeconfig"


class PassingError(UnavailableError):
    """A transient error: a retry may succeed."""


class UnknownKindError(UnavailableError):
    """The API server does not serve this kind: its CustomResourceDefinition is not installed."""


class GoneError(UnavailableError):
    """The requested resourceVersion or continue token is unknown or has expired: list again."""


def is_gone(status: Any, message: str) -> bool:
    """Whether a response means GoneError: HTTP 410, or a version from the future, as after a restored etcd backup."""
    return status == 410 or (status == 504 and "Too large resource version" in message)


def is_too_large(status: Any, message: str, details: Mapping[str, Any]) -> bool:
    """Whether a response means that the object is too large: for etcd, for a request, or by its annotations."""
    if status == 413 or (status in (429, 500) and any(words in message for words in _TOO_LARGE)):
        return True
    causes = [cause for cause in details.get("causes") or [] if isinstance(cause, dict)]
    return status == 422 and any(
        cause.get("field") == "metadata.annotations" and "Too long" in str(cause.get("message")) for cause in causes
    )


def refused(
    target: Target, *, status: int, body: bytes, headers: Mapping[str, str], path: str, about: str
) -> DiflowError:
    """The error for an unsuccessful response. `about` names the object, such as "Workflow cartpole"."""
    message, reason, details = _read(body, status)
    error: DiflowError
    if status == 401:
        error = UnauthorizedError(
            f"{target.server} does not know who you are: log in again, or check the user in {target.kubeconfig}"
        )
    elif status == 403:
        error = UnauthorizedError(_forbidden(message, about, target.remedies))
    elif status == 404:
        error = _absent(path, about, message, target.remedies)
    elif status == 409 and reason == "AlreadyExists":
        error = ConflictError(f"{about} exists already: choose another name, or delete it first")
    elif status == 409:
        error = ConflictError(f"{about} was changed by somebody else meanwhile: try again ({message})")
    elif is_gone(status, message):
        error = GoneError(message)
    elif is_too_large(status, message, details):
        error = TooLargeError(f"{about} would become larger than the cluster keeps ({message}): make it smaller")
    elif status in (400, 422):
        error = _invalid(message, details, about)
    elif status == 429 or status >= 500:
        error = PassingError(
            f"{target.server} cannot answer now (HTTP {status}: {message}): try again in a moment",
            retry_after_seconds=_retry_after(headers),
        )
    else:
        error = UnavailableError(
            f"{target.server} gives HTTP {status} for {about}, which no Kubernetes API does: check the server's "
            f"address in {target.kubeconfig}"
        )
    error.answer = message
    return error


def unreachable(target: Target, error: Exception, *, streaming: bool = False) -> UnavailableError:
    """The error for a connection that failed, or that was lost while `streaming`."""
    text = _root_cause(error)
    name = type(error).__name__
    whose = target.kubeconfig[0].upper() + target.kubeconfig[1:]
    if streaming:
        return PassingError(f"the connection to {target.server} was lost: {text}")
    if name == "SSLError" and is_distrust(error):
        return UnavailableError(
            f"no trusted connection to {target.server} ({text}): check the server's address and "
            f"certificate-authority-data in {target.kubeconfig}, or log in to the cluster again"
        )
    if name == "SSLError":
        return PassingError(
            f"{target.server} broke off the TLS handshake ({text}): it, or what is between here and there, may be "
            f"restarting: try again in a moment. {whose} names this server"
        )
    if "Timeout" in name or isinstance(error, TimeoutError):
        return PassingError(
            f"no answer from {target.server} in time: is the cluster up, and is there a firewall in between? "
            f"{whose} names this server"
        )
    return PassingError(f"no cluster answers at {target.server} ({text}): is it up? {whose} names it")


def is_distrust(error: Exception) -> bool:
    """Whether an error of TLS is about certificates or protocols: then no request was sent."""
    return bool(_DISTRUST.search(_root_cause(error)))


def no_kubernetes(target: Target) -> str:
    """The message for a response that is not Kubernetes'."""
    return (
        f"{target.server} does not answer as a Kubernetes API does: check the server's address in {target.kubeconfig}"
    )


def no_kubeconfig(source: str, *, named: bool, remedies: Remedies) -> str:
    """The message for a kubeconfig that does not exist; `named`: the user gave its path."""
    if named or os.environ.get("KUBECONFIG"):
        return f"there is no kubeconfig at {source}: check --kubeconfig or $KUBECONFIG"
    return (
        f"no cluster is known: there is no kubeconfig at {source}. Set KUBECONFIG or give --kubeconfig"
        f"{_after(remedies.no_kubeconfig)}"
    )


def bad_kubeconfig(source: str, error: Exception) -> str:
    """The message for an invalid kubeconfig."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"the kubeconfig {source} cannot be used: {text}"


def _read(body: bytes, status: int) -> tuple[str, str, Mapping[str, Any]]:
    """The message, reason and details of a Kubernetes Status; else the response's text."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    message = str(answer.get("message") or body.decode(errors="replace").strip() or f"HTTP {status}")
    details = answer.get("details")
    return (
        " ".join(message.split())[:_LONGEST_MESSAGE],
        str(answer.get("reason") or ""),
        details if isinstance(details, dict) else {},
    )


def _absent(path: str, about: str, message: str, remedies: Remedies) -> DiflowError:
    if not about or "could not find the requested resource" in message or "page not found" in message:
        if path.startswith(f"/apis/{WORKFLOW.group}/"):
            return UnavailableError(
                f"Argo Workflows is not installed: no {WORKFLOW.resource} in this cluster. {remedies.no_argo}"
            )
        return UnknownKindError(f"this server knows no {path}: is it a Kubernetes API server?")
    match = re.match(r'namespaces "([^"]*)" not found', message)
    if match:
        return NoNamespaceError(f"there is no namespace {match[1]!r}: check -n, or create it")
    return NotFoundError(f"there is no {about}: check the name and the namespace")


def _forbidden(message: str, about: str, remedies: Remedies) -> str:
    """Name the missing right, parsed from the API server's message."""
    match = re.search(
        r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
        r'(?: in API group "(?P<group>[^"]*)")?(?: in the namespace "(?P<namespace>[^"]*)")?',
        message,
    )
    if match is None:
        return f"the cluster does not allow it ({about}): {message}"
    resource = match["resource"] + (f".{match['group']}" if match["group"] else "")
    where = f" in the namespace {match['namespace']!r}" if match["namespace"] else " in the whole cluster"
    return (
        f"the user {match['user']!r} lacks the right to {match['verb']} {resource}{where}: "
        f"ask the cluster's administrator for it{_after(remedies.no_right)}"
    )


def _after(remedy: str) -> str:
    return f" {remedy}" if remedy else ""


def _invalid(message: str, details: Mapping[str, Any], about: str) -> InvalidError:
    causes = details.get("causes") or []
    if causes and isinstance(causes[0], dict):
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        # One about the whole object may only say that other rules were not checked.
        known = [cause for cause in causes if isinstance(cause, dict) and cause.get("field") != _NO_FIELD]
        cause = known[0] if known else {**causes[0], "field": ""}
        return InvalidError(
            f"the cluster refuses {about}: {cause.get('message') or message}{more}", path=str(cause.get("field") or "")
        )
    return InvalidError(f"the cluster refuses {about}: {message}")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return float(headers.get("Retry-After") or "")
    except ValueError:
        return None


def _root_cause(error: BaseException) -> str:
    """The shortest informative text of an error of urllib3, which wraps others several times."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _root_cause(reason)
    text = str(error)
    for known in ("Connection refused", "Name or service not known", "No route to host", "timed out"):
        if known in text:
            return known.lower()
    match = re.search(r"\[SSL: (\w+)\][^(]*", text)
    if match:
        return match.group(0).strip()
    return " ".join(text.split())[:200] or type(error).__name__
