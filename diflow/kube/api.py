"""The Kubernetes client.

Objects are plain dictionaries, as the API server sends them: a list of a thousand Workflows is read without building
models. The `kubernetes` package supplies authentication, TLS and connection pools (`kubeconfig.py`). Every request has
a timeout, only reads are retried, and every error becomes one of `diflow.common.errors` with a line that says what to
do.

It does not know DIJobs.
"""

from __future__ import annotations

import copy
import email.utils
import json
import select
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack
from urllib.parse import urlencode

from diflow.common.clock import SYSTEM, Clock
from diflow.common.durations import backoff
from diflow.common.errors import InvalidError, NotFoundError, UnauthorizedError, UnavailableError
from diflow.common.names import check_label
from diflow.kube import answers, pages, refusals
from diflow.kube.kinds import POD, Kind
from diflow.kube.kubeconfig import access as kubeconfig_access
from diflow.kube.refusals import NO_REMEDIES, GoneError, Remedies

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

Json = dict[str, Any]

_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 30.0
_READ_MARGIN_SECONDS: Final = 2.0
_BACKOFF_SECONDS: Final = (0.5, 30.0)
_READ_TRIES: Final = 3
_PAGE: Final = 200
_METADATA_PAGE: Final = 10_000
"""One page for most clusters: fifty pages of the metadata of 10,000 Workflows took six times as long as one."""
_LOG_PARAMETERS: Final = {
    "follow": "follow", "previous": "previous", "since_seconds": "sinceSeconds", "since_time": "sinceTime",
    "tail": "tailLines", "timestamps": "timestamps",
}  # fmt: skip
_JSON: Final = "application/json"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ONE_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch: `kind` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Json


class Space(TypedDict, total=False):
    """Where objects are: in `namespace` (by default the cluster's) or `everywhere`."""

    namespace: str | None
    everywhere: bool


class Selection(Space, total=False):
    """Which objects of a kind: where, and by their selectors."""

    labels: str
    fields: str


def within(namespace: str) -> Space:
    """This namespace, or everywhere ("")."""
    return {"namespace": namespace} if namespace else {"everywhere": True}


class LogOptions(TypedDict, total=False):
    """Which lines of a log: those of a container (by default "main"), of the one before it was restarted (`previous`),
    the last `tail`, those since then; and also future ones (`follow`)."""

    container: str
    follow: bool
    previous: bool
    since_seconds: int | None
    since_time: str | None
    tail: int | None
    timestamps: bool


class Listing(Selection, total=False):
    """A selection, at most `limit` of it, and whether only the metadata is read."""

    limit: int | None
    metadata_only: bool


class Cluster:
    """A Kubernetes cluster, and the default namespace.

    `transport` has `request(method, url, ...)` like urllib3's PoolManager; `authorise` returns authentication headers.
    """

    def __init__(
        self,
        target: refusals.Target,
        *,
        transport: Any,
        authorise: Callable[[], Mapping[str, str]] = dict,
        namespace: str = "default",
        context: str = "",
        clock: Clock = SYSTEM,
        read_seconds: float = _READ_SECONDS,
        connect_seconds: float = _CONNECT_SECONDS,
    ) -> None:
        self.target = replace(target, server=target.server.rstrip("/"))
        self.namespace = namespace
        self.context = context
        self._transport = transport
        self._authorise = authorise
        self._clock = clock
        self._read_seconds = read_seconds
        self._connect_seconds = connect_seconds
        self._read_tries = _READ_TRIES
        self._clock_skew_seconds: float | None = None

    @classmethod
    def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        remedies: Remedies = NO_REMEDIES,
    ) -> Self:
        """The cluster of a kubeconfig (by default $KUBECONFIG or ~/.kube/config), else that of the service account.

        No request is sent. Raises UnavailableError if there is no usable kubeconfig, InvalidError for an invalid
        namespace name.
        """
        if namespace is not None:
            check_label(namespace, what="the namespace", path="--namespace")
        access = kubeconfig_access(kubeconfig, context=context, remedies=remedies)
        return cls(
            refusals.Target(access.server, access.source, remedies),
            transport=access.transport,
            authorise=access.authorise,
            namespace=namespace or access.namespace,
            context=access.context,
        )

    def without_retries(self, *, read_seconds: float | None = None, connect_seconds: float | None = None) -> Self:
        """The same cluster over the same connections, without retries of reads, for callers that retry themselves."""
        other = copy.copy(self)
        other._read_tries = 1
        other._read_seconds = read_seconds or self._read_seconds
        other._connect_seconds = connect_seconds or self._connect_seconds
        return other

    # --- objects ------------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json:
        """One object. Raises NotFoundError, InvalidError for an empty name."""
        return self._json("GET", self._path(kind, namespace, name), about=kind.about(name))

    def find(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json | None:
        """One object, or None if there is none."""
        try:
            return self.get(kind, name, namespace=namespace)
        except NotFoundError:
            return None

    def lacks(self, kind: Kind, name: str, *, namespace: str | None = None) -> bool:
        """Whether there is no such object; False if the user may not read it."""
        try:
            return self.find(kind, name, namespace=namespace) is None
        except UnauthorizedError:
            return False

    def list_all(self, kind: Kind, **listing: Unpack[Listing]) -> list[Json]:
        """All objects of a kind in the namespace (or `everywhere`) that match the selectors, read in pages."""
        return self.snapshot(kind, **listing)[0]

    def snapshot(self, kind: Kind, **listing: Unpack[Listing]) -> tuple[list[Json], str]:
        """As `list_all`, with the resourceVersion to watch from."""
        size = listing.get("limit") or (_METADATA_PAGE if listing.get("metadata_only") else _PAGE)
        try:
            return self._listed(kind, size, **listing)
        except GoneError:  # the continue token expired while the pages were read: once more, as one page
            return self._listed(kind, 0, **listing)

    def _listed(
        self, kind: Kind, size: int, *, limit: int | None = None, metadata_only: bool = False, **chosen: Any
    ) -> tuple[list[Json], str]:
        items: list[Json] = []
        version = ""
        for page, version in self.list_pages(kind, size=size, metadata_only=metadata_only, **chosen):  # noqa: B007
            items += page
            if limit is not None and len(items) >= limit:
                break
        return items, version

    def list_pages(
        self, kind: Kind, *, size: int = _PAGE, metadata_only: bool = False, **selection: Unpack[Selection]
    ) -> Iterator[tuple[list[Json], str]]:
        """The pages of a list (of `size` objects; 0: all in one), each with the list's resourceVersion.

        At most two pages are in memory at a time. Raises GoneError if the continue token has expired.
        """
        path, selectors = self._selected(kind, **selection)
        accept = _METADATA_ONLY if metadata_only else _JSON

        def fetch(token: str) -> bytes:
            query = {**selectors, "limit": size, "continue": token}
            return self._bytes("GET", path, query=query, accept=accept, about=kind.about())

        for page in pages.read(fetch, self._parse):
            if "items" not in page:  # a proxy's page, for example, must not count as an empty cluster
                raise UnavailableError(refusals.no_kubernetes(self.target))
            yield page["items"] or [], (page.get("metadata") or {}).get("resourceVersion") or ""

    def create(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        strict: bool = True,
        manager: str = "",
    ) -> Json:
        """Create an object. Raises ConflictError if its name is taken, InvalidError if the server rejects it.

        `strict`: a dry run refuses fields that the server does not know. `manager`: the field manager in managedFields.
        """
        name = (body.get("metadata") or {}).get("name") or ""
        trial = {"dryRun": "All", "fieldValidation": "Strict" if strict else "Ignore"} if dry_run else {}
        return self._json(
            "POST",
            kind.path(self._space(kind, namespace)),
            query={**trial, "fieldManager": manager},
            body=body,
            about=kind.about(name),
        )

    def replace(
        self,
        kind: Kind,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str = "",
        manager: str = "",
    ) -> Json:
        """Replace an object (or its `subresource`). Raises ConflictError if it was changed since `body` was read.

        `manager`: the field manager in managedFields."""
        return self._json(
            "PUT",
            self._path(kind, namespace, name, *([subresource] if subresource else [])),
            query={"fieldManager": manager},
            body=body,
            about=kind.about(name),
        )

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Mapping[str, Any] | list[Any],
        *,
        namespace: str | None = None,
        subresource: str = "",
        manager: str = "",
        metadata_only: bool = False,
    ) -> Json:
        """Change an object (or its `subresource`): a mapping is a merge patch, a list a JSON patch.

        `manager`: the field manager in managedFields. `metadata_only`: only the object's metadata is returned. A JSON
        patch with a failing test raises InvalidError.
        """
        content = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        return self._json(
            "PATCH",
            self._path(kind, namespace, name, *([subresource] if subresource else [])),
            query={"fieldManager": manager},
            body=body,
            content_type=content,
            accept=_ONE_METADATA if metadata_only else _JSON,
            about=kind.about(name),
        )

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> bool:
        """Delete an object. Returns whether it existed. Raises ConflictError if it is not the one with this `uid`."""
        options: Json = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._json("DELETE", self._path(kind, namespace, name), body=options, about=kind.about(name))
        except NotFoundError:
            return False
        return True

    # --- streams ------------------------------------------------------------------------------------------------------

    def stream(
        self,
        kind: Kind,
        *,
        since: str,
        seconds: float,
        silence_seconds: float,
        opened: Callable[[Callable[[], None]], None] = lambda _: None,
        idle: Callable[[], None] = lambda: None,
        metadata_only: bool = False,
        **selection: Unpack[Selection],
    ) -> Generator[Change, None, None]:
        """Yield the events of one watch, including bookmarks, until the server ends it after about `seconds`.

        `since` is the resourceVersion to start from. `opened` is called when the server has accepted the watch, with a
        function that closes the connection from any thread; `idle` when all that has come was yielded. Raises GoneError
        if `since` has expired, and UnavailableError if the stream breaks, or is silent for `silence_seconds`.
        `metadata_only`: the events have only the metadata of the objects.
        """
        path, selectors = self._selected(kind, **selection)
        query = {
            **selectors,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": max(1, int(seconds)),
        }
        silence = min(silence_seconds, max(seconds, 1.0) + _READ_MARGIN_SECONDS)
        accept = _ONE_METADATA if metadata_only else _JSON
        with self._open("GET", path, query=query, accept=accept, read_seconds=silence, about="a watch") as response:
            opened(lambda: _hang_up(response))
            for line in _lines(response, idle):
                try:
                    event = answers.parse(line)
                except ValueError:
                    raise UnavailableError("the watch was cut off in the middle of an event") from None
                what, obj = event.get("type"), event.get("object") or {}
                if what == "ERROR":
                    code, message = obj.get("code"), str(obj.get("message") or "")
                    if refusals.is_gone(code, message):
                        raise GoneError(message or "too old")
                    raise UnavailableError(f"the watch failed: {message or code}")
                (obj.get("metadata") or {}).pop("managedFields", None)
                yield Change(what, obj)

    def logs(self, pod: str, *, namespace: str | None = None, **options: Unpack[LogOptions]) -> Iterator[str]:
        """The lines of a container's log, without line ends."""
        query: dict[str, Any] = {"container": options.get("container", "main")}
        for name, parameter in _LOG_PARAMETERS.items():
            value = options.get(name)
            query[parameter] = "" if value is None or value is False else "true" if value is True else value
        path = self._path(POD, namespace, pod, "log")
        seconds = None if options.get("follow") else self._read_seconds
        with self._open("GET", path, query=query, read_seconds=seconds, about=POD.about(pod)) as response:
            for line in _lines(response):
                yield line.decode("utf-8", errors="replace").removesuffix("\r")

    # --- the cluster itself -------------------------------------------------------------------------------------------

    def can_i(self, verb: str, kind: Kind, *, subresource: str = "") -> bool:
        """Whether the user has a right in the default namespace (a SelfSubjectAccessReview)."""
        attributes = {
            "verb": verb,
            "group": kind.group,
            "resource": kind.plural,
            "subresource": subresource,
            "namespace": self.namespace if kind.namespaced else "",
        }
        review = self._json(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
            about="a SelfSubjectAccessReview",
        )
        return bool((review.get("status") or {}).get("allowed"))

    def may(self, user: str, verb: str, kind: Kind) -> bool | None:
        """Whether another user has a right in all namespaces (a SubjectAccessReview); None if the answer has none."""
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural}
        review = self._json(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": attributes},
            },
            about="a SubjectAccessReview",
        )
        allowed = (review.get("status") or {}).get("allowed")
        return allowed if isinstance(allowed, bool) else None

    def version(self) -> str:
        """The server's version, such as v1.34.4."""
        return str(self._json("GET", "/version").get("gitVersion") or "unknown")

    def serves(self, kind: Kind) -> bool:
        """Whether the server knows this kind in this version."""
        path = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            found = self._json("GET", path, about=f"the kinds of {kind.api_version}")
        except (NotFoundError, refusals.UnknownKindError):
            return False
        return any(one.get("name") == kind.plural for one in found.get("resources") or [])

    def clock_skew_seconds(self) -> float | None:
        """How far the server's clock is ahead of ours, to the second, as of its last response."""
        return self._clock_skew_seconds

    # --- requests -----------------------------------------------------------------------------------------------------

    def _space(self, kind: Kind, namespace: str | None) -> str | None:
        return (namespace or self.namespace) if kind.namespaced else None

    def _path(self, kind: Kind, namespace: str | None, name: str, *parts: str) -> str:
        """The path of one object. Raises InvalidError for an empty name, whose path is that of all objects."""
        if not name:
            raise InvalidError(f"the name of the {kind.name} is empty")
        return kind.path(self._space(kind, namespace), name, *parts)

    def _selected(
        self, kind: Kind, *, namespace: str | None = None, everywhere: bool = False, labels: str = "", fields: str = ""
    ) -> tuple[str, Json]:
        """(the path of these objects, the query of the selectors)."""
        path = kind.path(None if everywhere else self._space(kind, namespace))
        return path, {"labelSelector": labels, "fieldSelector": fields}

    def _json(self, method: str, path: str, **request: Any) -> Json:
        return self._parse(self._bytes(method, path, **request))

    def _parse(self, data: bytes) -> Json:
        try:
            parsed = answers.parse(data)
        except ValueError:
            raise UnavailableError(refusals.no_kubernetes(self.target)) from None
        return parsed if isinstance(parsed, dict) else {}

    def _bytes(self, method: str, path: str, **request: Any) -> bytes:
        """The response to a request. Reads are retried after transient errors, writes never."""
        tries = self._read_tries if method == "GET" else 1
        for attempt in range(1, tries):
            try:
                return self._once(method, path, **request)
            except refusals.PassingError as error:
                self._pause(attempt, at_least=error.retry_after_seconds)
        return self._once(method, path, **request)

    def _once(self, method: str, path: str, **request: Any) -> bytes:
        with self._open(method, path, **request) as response:
            return _read_all(response)

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        read_seconds: float | None = -1,
        about: str = "",
    ) -> Iterator[BaseHTTPResponse]:
        import urllib3  # noqa: PLC0415 (comes with `kubernetes`, and is as slow to import)

        given = {key: value for key, value in (query or {}).items() if value not in ("", None)}
        url = f"{self.target.server}{path}" + (f"?{urlencode(given)}" if given else "")
        read = self._read_seconds if read_seconds == -1 else read_seconds
        headers = {"Accept": accept, "User-Agent": "diflow", **self._authorise()}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body).encode()
        response = None
        try:
            response = self._transport.request(
                method,
                url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=self._connect_seconds, read=read),
                preload_content=False,
                retries=False,
                redirect=False,
            )
            self._note_clock(response.headers.get("Date"))
            if response.status >= 300:
                raise refusals.refused(
                    self.target,
                    status=response.status,
                    body=_read_all(response),
                    headers=response.headers,
                    path=path,
                    about=about,
                )
            yield response
        except urllib3.exceptions.HTTPError as error:
            raise refusals.unreachable(self.target, error, streaming=response is not None) from None
        except OSError as error:
            raise refusals.unreachable(self.target, error, streaming=response is not None) from None
        finally:
            if response is not None:
                _close(response)

    def _pause(self, failures: int, *, at_least: float | None = None) -> None:
        """Wait before a retry: full jitter, at least what the server asked for."""
        pause = self._clock.jitter(0.0, backoff(_BACKOFF_SECONDS, failures))
        self._clock.sleep(max(pause, min(at_least or 0.0, _BACKOFF_SECONDS[1])))

    def _note_clock(self, date: str | None) -> None:
        if not date:
            return
        try:
            server = email.utils.parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        self._clock_skew_seconds = server - self._clock.wall()


def _read_all(response: BaseHTTPResponse) -> bytes:
    data: bytes = response.read(decode_content=True)
    return data


def _lines(response: BaseHTTPResponse, idle: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The lines of a stream as they arrive. The last line may be incomplete. `idle` is called if no more have come."""
    rest = b""
    is_chunked = getattr(response, "chunked", False)
    chunks = iter(response.stream(amt=None, decode_content=True) if is_chunked else _blocks(response))
    while True:
        if not rest and not _has_more(response):
            idle()
        chunk = next(chunks, None)
        if chunk is None:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _has_more(response: BaseHTTPResponse) -> bool:
    """Whether the connection has bytes that were not read yet, as far as is known."""
    with suppress(OSError, ValueError, AttributeError):  # it is no socket, or has just been closed
        waiting = select.poll()
        waiting.register(response.fileno(), select.POLLIN)
        return bool(waiting.poll(0))
    return False


def _blocks(response: BaseHTTPResponse) -> Iterator[bytes]:
    while block := response.read1(65536, decode_content=True):
        yield block


def _close(response: BaseHTTPResponse) -> None:
    """Release a finished connection to the pool; close one with an unfinished stream, which may never end."""
    drained = response.closed or getattr(response, "_fp", None) is None or response.length_remaining == 0
    fp = getattr(response, "_fp", None)
    if drained or (fp is not None and getattr(fp, "closed", False)):
        response.release_conn()
    else:
        response.close()


def _hang_up(response: BaseHTTPResponse) -> None:
    """Close a stream that another thread is reading, which sees a lost connection."""
    with suppress(Exception):  # it may have just ended, or urllib3 cannot do this (< 2.3)
        response.shutdown()
