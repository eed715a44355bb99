"""A small Kubernetes API server on a real socket, with injected failures.

It keeps objects in memory, supports paged lists, watches, logs, patches and dry runs, and records each request.
"""

from __future__ import annotations

import bisect
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import urllib3

from diflow.common.clock import Clock
from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind
from diflow.kube.refusals import Target

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class Answer:
    """The response to one request: a status with a body, lines of a stream, or a broken connection."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    lines: list[str] | None = None
    stall_seconds: float = 0.0
    cut: bool = False


MOST_ANNOTATIONS = 262_144

Rule = Callable[[Request], Answer | None]


class FakeApi:
    """The server. `rules` are called first, newest first; a rule that returns None lets the request through."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {}
        self.logs: dict[str, list[str]] = {}
        self.requests: list[Request] = []
        self.rules: list[Rule] = []
        self.version = 100
        self.changed = threading.Condition()
        self.events: list[tuple[int, str, str, Json]] = []
        self._before: dict[int, Json] = {}
        self.denied: set[tuple[str, str]] = set()
        self._lists: dict[tuple[str, str], list[Json]] = {}
        self.closing = False
        self.most_bytes = 0
        """The size limit of an object in etcd; 0: none."""
        self.url = ""
        self.present: Callable[[], str] = now
        """The time at which objects are created."""
        self.uid_of: Callable[[str], str] = lambda name: f"uid-{name}"
        """The uid of an object that is created with this name."""

    # --- for tests ------------------------------------------------------------------------------------------------

    def add(self, kind: Kind, body: Json, *, namespace: str = "default") -> Json:
        """Add or replace an object."""
        collection = kind.path(namespace if kind.namespaced else None)
        name = body["metadata"]["name"]
        with self.changed:
            self.version += 1
            known = self.objects.setdefault(collection, {}).get(name)
            metadata = {
                "namespace": namespace, "uid": f"uid-{name}", **body["metadata"], "resourceVersion": str(self.version),
            }  # fmt: skip
            stored = {"kind": kind.name, **body, "metadata": metadata}
            self.objects[collection][name] = stored
            if known is not None:
                self._before[self.version] = known
            self._happened("MODIFIED" if known is not None else "ADDED", collection, stored)
        return stored

    def remove(self, kind: Kind, name: str, *, namespace: str = "default") -> None:
        """Remove an object."""
        collection = kind.path(namespace if kind.namespaced else None)
        with self.changed:
            self.version += 1
            gone = self.objects[collection].pop(name)
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self._happened("DELETED", collection, gone)

    def bookmark(self) -> None:
        """Send a bookmark to all watches."""
        with self.changed:
            self.version += 1
            self.events.append((self.version, "BOOKMARK", "", {"metadata": {"resourceVersion": str(self.version)}}))
            self.changed.notify_all()

    def rule(self, rule: Rule) -> None:
        """Add a rule in front of the others."""
        self.rules.insert(0, rule)

    def fail(self, answer: Answer, *, method: str = "", path: str = "", times: int = 1) -> None:
        """Give this answer to the next `times` requests of the method whose path contains `path`."""
        left = [times]

        def rule(request: Request) -> Answer | None:
            if left[0] > 0 and request.method == (method or request.method) and path in request.path:
                left[0] -= 1
                return answer
            return None

        self.rule(rule)

    def seen(self, method: str, path: str = "") -> list[Request]:
        """The requests so far of a method whose path contains `path`."""
        return [r for r in self.requests if r.method == method and path in r.path]

    def cluster(self, **options: Any) -> Cluster:
        """A client of this server that does not wait between retries."""
        clock = Clock(sleep=lambda _: None, jitter=lambda low, _: low)
        given = {"clock": clock, "read_seconds": 2.0, "connect_seconds": 1.0, **options}
        return Cluster(Target(self.url, "/home/me/kubeconfig"), transport=urllib3.PoolManager(maxsize=8), **given)

    # --- how it answers -------------------------------------------------------------------------------------------

    def _happened(self, what: str, collection: str, obj: Json) -> None:
        self.events.append((self.version, what, collection, json.loads(json.dumps(obj))))
        self.changed.notify_all()

    def answer(
        self, request: Request, write: Callable[[Answer], None], stream: Callable[[Iterator[str]], None]
    ) -> None:
        """Answer one request."""
        with self.changed:
            self.requests.append(request)
            rules = list(self.rules)
        for rule in rules:
            made = rule(request)
            if made is not None:
                if made.stall_seconds:
                    time.sleep(made.stall_seconds)
                if made.lines is not None:
                    stream(iter(made.lines))
                else:
                    write(made)
                return
        if request.query.get("watch"):
            stream(self._watch(request))
        elif request.path.endswith("/log"):
            pod = request.path.split("/")[-2]
            stream(iter(self.logs.get(pod, [])))
        else:
            write(self._plain(request))

    def _watch(self, request: Request) -> Iterator[str]:
        """The changes of the objects that match the request. An empty line only wakes the stream, and is not sent."""
        sent = int(request.query.get("resourceVersion") or 0)
        ends = time.monotonic() + float(request.query.get("timeoutSeconds") or 60)
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        while time.monotonic() < ends and not self.closing:
            with self.changed:
                first = bisect.bisect_right(self.events, sent, key=lambda event: event[0])
                news = [e for e in self.events[first:] if not e[2] or is_inside(e[2], request.path)]
                before = {e[0]: self._before.get(e[0]) for e in news}
                if not news:
                    self.changed.wait(0.02)
            if not news:
                yield ""
            for version, what, collection, obj in news:
                sent = version
                told: str | None = what
                if collection:
                    was, old = what != "ADDED", before[version]
                    told = _told(what, was and chosen(old or obj, labels, fields), chosen(obj, labels, fields))
                if told:
                    yield json.dumps({"type": told, "object": obj})

    def _plain(self, request: Request) -> Answer:
        if request.path == "/version":
            return Answer(body={"gitVersion": "v1.34.4"})
        if request.path.endswith("/selfsubjectaccessreviews"):
            a = request.body["spec"]["resourceAttributes"]
            return Answer(body={"status": {"allowed": (a["verb"], a["resource"]) not in self.denied}})
        if request.path.endswith("/localsubjectaccessreviews"):
            return Answer(201, {"status": {"allowed": True}})
        path, subresource = request.path, ""
        if path.endswith("/status"):
            path, _, subresource = path.rpartition("/")
        if path in self.objects or path.split("/")[-1] in _PLURALS:
            return self._collection(request)
        collection, _, name = path.rpartition("/")
        with self.changed:
            obj = self.objects.get(collection, {}).get(unquote(name))
            if obj is None:
                return status(404, f'{collection.split("/")[-1]} "{name}" not found', reason="NotFound")
            return self._object(request, collection, obj, subresource)

    def _collection(self, request: Request) -> Answer:
        if request.method == "POST":
            with self.changed:
                name = request.body["metadata"]["name"]
                if name in self.objects.get(request.path, {}):
                    return status(409, f'"{name}" already exists', reason="AlreadyExists")
                if request.query.get("dryRun"):
                    return Answer(201, request.body)
                kind = next(k for k in _KINDS if k.plural == request.path.split("/")[-1])
                namespace = request.path.split("/")[-2] if kind.namespaced else "default"
                body = {
                    **request.body,
                    "metadata": {
                        "creationTimestamp": self.present(),
                        "uid": self.uid_of(name),
                        **request.body["metadata"],
                    },
                }
                if kind is _all.POD:
                    body["status"] = {"phase": "Pending"}
                return Answer(201, self.add(kind, body, namespace=namespace))
        if "continue" in request.query:
            token, _, start = request.query["continue"].partition(":")
            return self._page(request, token, int(start))
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        with self.changed:
            paths = [request.path] if request.path in self.objects else list(self.objects)
            inside = [self.objects[path] for path in paths if is_inside(path, request.path)]
            token = str(self.version)
            listed = [o for objects in inside for o in objects.values() if chosen(o, labels, fields)]
        self._lists[token, request.path] = listed
        return self._page(request, token, 0)

    def _page(self, request: Request, token: str, start: int) -> Answer:
        """A page of a list as it was when its first page was read."""
        listed = self._lists[token, request.path]
        limit = int(request.query.get("limit") or 0)
        page = listed[start : start + limit] if limit else listed
        metadata: Json = {"resourceVersion": token}
        if limit and start + limit < len(listed):
            metadata["continue"] = f"{token}:{start + limit}"
        return Answer(body={"kind": "List", "metadata": metadata, "items": page})

    def _object(self, request: Request, collection: str, obj: Json, subresource: str) -> Answer:
        kind = next(k for k in _KINDS if k.plural == collection.rsplit("/", maxsplit=1)[-1])
        name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        if request.method == "DELETE":
            expected = ((request.body or {}).get("preconditions") or {}).get("uid")
            if expected not in (None, obj["metadata"].get("uid")):
                return status(409, "the UID in the precondition does not match", reason="Conflict")
            self.remove(kind, name, namespace=namespace)
            return Answer(body={"kind": "Status", "status": "Success"})
        if request.method == "PATCH":
            return self._patched(request, kind, obj, subresource)
        if request.method == "PUT":
            if request.body["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
                return status(409, "the object has been modified", reason="Conflict")
            new = {**obj, "status": request.body.get("status")} if subresource else request.body
            return Answer(body=self.add(kind, new, namespace=namespace))
        return Answer(body=obj)

    def _patched(self, request: Request, kind: Kind, obj: Json, subresource: str) -> Answer:
        name = obj["metadata"]["name"]
        given = (request.body.get("metadata") or {}) if isinstance(request.body, dict) else {}
        refusal = _precondition(given, obj["metadata"])
        if refusal is not None:
            return refusal
        new = merge(obj, request.body)
        refusal = self._size(new, name)
        if refusal is not None:
            return refusal
        if kind is DIJOB:
            new = {**obj, "status": new.get("status")} if subresource else {**new, "status": obj.get("status")}
        if kind is _all.POD:
            # The status of a pod is changed by its subresource alone, and that changes nothing else.
            new = {**obj, "status": new.get("status")} if subresource else {**new, "status": obj.get("status")}
            wrong = pod_fault(obj.get("spec") or {}, new.get("spec") or {})
            if wrong:
                return status(422, f'Pod "{name}" is invalid: {wrong}', reason="Invalid")
        if new == obj:
            return Answer(body=obj)  # a patch that changes nothing makes no new version
        return Answer(body=self.add(kind, new, namespace=obj["metadata"]["namespace"]))

    def _size(self, new: Json, name: str) -> Answer | None:
        """Annotations have a limit of their own, which every change is checked against."""
        annotations: Json = new["metadata"].get("annotations") or {}
        if sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items()) > MOST_ANNOTATIONS:
            text = f"Too long: may not be more than {MOST_ANNOTATIONS} bytes"
            cause = {"reason": "FieldValueTooLong", "message": text, "field": "metadata.annotations"}
            message = f'"{name}" is invalid: metadata.annotations: {text}'
            return status(422, message, reason="Invalid", details={"causes": [cause]})
        if self.most_bytes and len(json.dumps(new)) > self.most_bytes:
            return status(500, "etcdserver: request is too large")
        return None


def _precondition(given: Json, known: Json) -> Answer | None:
    """A patch with a resourceVersion or a uid applies to that object only (the resourceVersion is checked first)."""
    version = given.get("resourceVersion")
    if version is not None and version != known["resourceVersion"]:
        return status(409, "the object has been modified", reason="Conflict")
    if given.get("uid") not in (None, known.get("uid")):
        return status(422, f"metadata.uid: Invalid value: {given['uid']}: field is immutable", reason="Invalid")
    return None


def pod_fault(old: Json, new: Json) -> str:
    """Why the API server rejects a change of a pod's spec, or ""."""
    left = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    gates = [gate["name"] for gate in old.get("schedulingGates") or []]
    for name in left:
        before, after = old.get(name), new.get(name)
        if name == "activeDeadlineSeconds" and after is not None and after > 0 and (before is None or after <= before):
            continue
        if name == "schedulingGates" and all(gate["name"] in gates for gate in after or []):
            continue
        if name == "nodeSelector" and gates and (before or {}).items() <= (after or {}).items():
            continue
        if name == "nodeName":
            continue  # kube-scheduler's own way (a Binding) is no patch; tests bind like this
        return f"spec.{name}: Forbidden: pod updates may not change fields other than ..."
    return ""


@lru_cache(maxsize=4096)
def is_inside(collection: str, path: str) -> bool:
    """Whether objects of `collection` are among those of `path`, which may be all namespaces."""
    return collection == path or re.sub(r"/namespaces/[^/]+(?=/)", "", collection) == path


def chosen(obj: Json, labels: str, fields: str) -> bool:
    """Whether an object matches a label selector and a field selector."""
    if labels:
        found = obj["metadata"].get("labels") or {}
        for key, equal, value in _selector(labels):
            if (found.get(key) == value) is not equal:
                return False
    return all((str(_field(obj, path) or "") == value) is equal for path, equal, value in _selector(fields))


@lru_cache(maxsize=4096)
def _selector(text: str) -> tuple[tuple[str, bool, str], ...]:
    parts = (re.fullmatch(r"([^!=]+)(!=|==?)(.*)", part) for part in text.split(",") if part)
    return tuple((part[1], part[2] != "!=", part[3]) for part in parts if part is not None)


def _told(what: str, was: bool, is_now: bool) -> str | None:
    """The event for a watch with a selector: an object that no longer matches is deleted for it."""
    if what == "DELETED":
        return what if was else None
    if is_now:
        return "MODIFIED" if was else "ADDED"
    return "DELETED" if was else None


def _field(obj: Any, path: str) -> Any:
    for name in path.split("."):
        obj = (obj or {}).get(name)
    return obj


def status(code: int, message: str, *, reason: str = "", details: Json | None = None, **headers: str) -> Answer:
    """An error response of Kubernetes."""
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}
    if details:
        body["details"] = details
    return Answer(code, body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def now() -> str:
    """The present time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def merge(old: Any, change: Any) -> Any:
    if not isinstance(change, dict) or not isinstance(old, dict):
        return change
    out = dict(old)
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


from diflow.contrib.di_orchestrator.manifest import AGGREGATOR_CONFIG  # noqa: E402
from diflow.jobs.dijobs import DIJOB  # noqa: E402 (only for what follows)
from diflow.kube import kinds as _all  # noqa: E402

_KINDS = [DIJOB, AGGREGATOR_CONFIG, *(kind for kind in vars(_all).values() if isinstance(kind, Kind))]
_PLURALS = {kind.plural for kind in _KINDS}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer goes out in two parts: the second would wait 40 ms for the client's ACK
    api: FakeApi

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = json.loads(raw) if raw else None
        request = Request(self.command, parts.path, query, dict(self.headers.items()), body)
        try:
            self.api.answer(request, self._write, self._stream)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _write(self, answer: Answer) -> None:
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.cut:
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in answer.headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            if not line:
                continue
            if line == CUT:
                self.close_connection = True
                self.connection.close()
                return
            if line == STALL:
                time.sleep(1.0)
                continue
            data = line.encode() if line.endswith("\\") else f"{line}\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


CUT = "<the connection breaks here>"
STALL = "<a second of silence>"


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[FakeApi]:
    """A server on a free port of this machine, with TLS if a context is given."""
    api = FakeApi()
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    api.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
    if context:
        # The handshake is made by the thread of the connection.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.closing = True
        server.shutdown()
        server.server_close()
        thread.join(5)
