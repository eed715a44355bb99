"""Requests and their errors, against a server on a real socket."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from diflow.common.clock import Clock
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
from diflow.kube import pages
from diflow.kube.api import Cluster
from diflow.kube.kinds import CRD, POD, PRIORITY_CLASS, WORKFLOW
from diflow.kube.refusals import Target
from tests.kube.fakeapi import Answer, FakeApi, serving, status
from tests.kube.in_a_pod import as_in_a_pod


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


def workflow(name: str, **metadata: object) -> dict[str, object]:
    return {"metadata": {"name": name, **metadata}, "spec": {}}


def test_an_object_goes_in_and_comes_out_as_plain_data(api: FakeApi) -> None:
    cluster = api.cluster()
    cluster.create(WORKFLOW, workflow("a"))
    assert cluster.get(WORKFLOW, "a")["metadata"]["name"] == "a"
    assert cluster.find(WORKFLOW, "b") is None
    changed = cluster.patch(WORKFLOW, "a", {"spec": {"suspend": True}})
    assert changed["spec"] == {"suspend": True}
    assert cluster.delete(WORKFLOW, "a") is True
    assert cluster.delete(WORKFLOW, "a") is False


def test_a_dry_run_checks_strictly_and_makes_nothing(api: FakeApi) -> None:
    api.cluster().create(WORKFLOW, workflow("a"), dry_run=True)
    (request,) = api.seen("POST")
    assert request.query == {"dryRun": "All", "fieldValidation": "Strict"}
    assert api.cluster().find(WORKFLOW, "a") is None


def test_a_list_is_read_page_by_page(api: FakeApi) -> None:
    for i in range(7):
        api.add(POD, {"metadata": {"name": f"p{i}"}})
    api.rule(lambda r: r.query.__setitem__("limit", "3"))
    assert len(api.cluster().list_all(POD)) == 7
    assert [r.query.get("continue", "").rpartition(":")[2] for r in api.seen("GET")] == ["", "3", "6"]


def test_a_list_whose_place_is_forgotten_between_pages_is_read_again_in_one_piece(api: FakeApi) -> None:
    for i in range(7):
        api.add(POD, {"metadata": {"name": f"p{i}"}})
    api.rule(lambda r: r.query.__setitem__("limit", "3") if r.query.get("limit") != "0" else None)
    api.rule(lambda r: status(410, "the continue token is too old") if r.query.get("continue") else None)
    assert len(api.cluster().list_all(POD)) == 7


def test_metadata_is_listed_in_one_page_where_whole_objects_are_listed_in_many(api: FakeApi) -> None:
    cluster = api.cluster()
    cluster.list_all(WORKFLOW)
    cluster.list_all(WORKFLOW, metadata_only=True)
    cluster.list_all(WORKFLOW, metadata_only=True, limit=5)
    assert [r.query["limit"] for r in api.requests] == ["200", "10000", "5"]


def test_metadata_alone_is_asked_for_when_it_is_enough(api: FakeApi) -> None:
    api.cluster().list_all(WORKFLOW, metadata_only=True)
    assert "PartialObjectMetadataList" in api.requests[0].headers["Accept"]


def test_a_json_patch_is_a_list_and_a_mapping_is_merged(api: FakeApi) -> None:
    api.add(WORKFLOW, workflow("a"))
    api.cluster().patch(WORKFLOW, "a", {"spec": {}})
    api.fail(Answer(body={}), method="PATCH")
    api.cluster().patch(WORKFLOW, "a", [{"op": "test", "path": "/x", "value": 1}])
    kinds = [r.headers["Content-Type"] for r in api.seen("PATCH")]
    assert kinds == ["application/merge-patch+json", "application/json-patch+json"]


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            status(401, "Unauthorized"),
            UnauthorizedError,
            r"does not know who you are: log in again, or check the user in the kubeconfig /home/me/kubeconfig",
        ),
        (
            status(
                403,
                'workflows.argoproj.io is forbidden: User "ada" cannot list resource "workflows" '
                'in API group "argoproj.io" in the namespace "lab"',
            ),
            UnauthorizedError,
            r"the user 'ada' lacks the right to list workflows\.argoproj\.io in the namespace 'lab'",
        ),
        (
            status(403, 'nodes is forbidden: User "ada" cannot list resource "nodes" at the cluster scope'),
            UnauthorizedError,
            r"lacks the right to list nodes in the whole cluster",
        ),
        (status(403, "denied by policy x"), UnauthorizedError, r"the cluster does not allow it .*: denied by policy x"),
        (status(413, "Request entity too large: limit is 3145728"), TooLargeError, r"larger than the cluster keeps"),
        (status(500, "etcdserver: request is too large"), TooLargeError, r"larger than the cluster keeps"),
        (
            status(
                422,
                "metadata.annotations: Too long: may not be more than 262144 bytes",
                reason="Invalid",
                details={
                    "causes": [{"field": "metadata.annotations", "message": "Too long: may not be more than ..."}]
                },
            ),
            TooLargeError,
            r"larger than the cluster keeps",
        ),
        (status(404, 'workflows "a" not found'), NotFoundError, r"there is no Workflow a: check the name"),
        (status(404, 'namespaces "lab" not found'), NoNamespaceError, r"there is no namespace 'lab'"),
        (
            status(404, "the server could not find the requested resource"),
            UnavailableError,
            r"Argo Workflows is not installed: no workflows\.argoproj\.io in this cluster",
        ),
        (Answer(404, b"404 page not found"), UnavailableError, r"Argo Workflows is not installed"),
        (status(409, "x", reason="AlreadyExists"), ConflictError, r"Workflow a exists already: choose another name"),
        (status(409, "modified", reason="Conflict"), ConflictError, r"was changed by somebody else"),
        (status(400, "bad value"), InvalidError, r"the cluster refuses Workflow a: bad value"),
        (
            status(422, "invalid", details={"causes": [{"field": "spec.x", "message": "too long"}, {}]}),
            InvalidError,
            r"spec\.x: the cluster refuses Workflow a: too long \(and 1 more\)",
        ),
        (status(503, "etcd is down"), UnavailableError, r"cannot answer now \(HTTP 503: etcd is down\)"),
        (status(302, "elsewhere"), UnavailableError, r"HTTP 302 .* which no Kubernetes API does"),
        (Answer(200, b"<html>a captive portal</html>"), UnavailableError, r"does not answer as a Kubernetes API does"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(
    api: FakeApi, answer: Answer, kind: type[DiflowError], text: str
) -> None:
    api.rule(lambda _: answer)
    with pytest.raises(kind) as caught:
        api.cluster().get(WORKFLOW, "a")
    assert re.search(text, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_api_that_is_not_argos_is_named(api: FakeApi) -> None:
    api.rule(lambda _: status(404, "the server could not find the requested resource"))
    with pytest.raises(UnavailableError, match="this server knows no /apis/scheduling"):
        api.cluster().get(PRIORITY_CLASS, "x")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (["metadata.name"], "metadata.name"),
        (["<nil>"], ""),
        (["<nil>", "metadata.name"], "metadata.name"),
        (["metadata.name", "<nil>"], "metadata.name"),
    ],
)
def test_the_field_of_an_invalid_object_is_kept_if_there_is_one(api: FakeApi, fields: list[str], path: str) -> None:
    causes = [{"field": field, "message": f"{field.strip('<>')} is wrong"} for field in fields]
    api.rule(lambda _: status(422, "x", details={"causes": causes}))
    with pytest.raises(InvalidError) as caught:
        api.cluster().create(WORKFLOW, workflow("a"))
    assert caught.value.path == path
    assert f"Workflow a: {path or 'nil'} is wrong" in str(caught.value)
    assert "<nil>" not in str(caught.value)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_read_is_tried_again_after_a_passing_trouble(api: FakeApi, code: int) -> None:
    api.add(WORKFLOW, workflow("a"))
    api.fail(status(code, "busy"), times=2)
    assert api.cluster().get(WORKFLOW, "a")
    assert len(api.seen("GET")) == 3


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
def test_a_write_is_never_tried_again(api: FakeApi, method: str) -> None:
    api.add(WORKFLOW, workflow("a"))
    api.fail(status(503, "busy"), method=method, times=9)
    cluster = api.cluster()
    calls: dict[str, Callable[[], object]] = {
        "POST": lambda: cluster.create(WORKFLOW, workflow("b")),
        "PATCH": lambda: cluster.patch(WORKFLOW, "a", {}),
        "PUT": lambda: cluster.replace(WORKFLOW, "a", workflow("a")),
        "DELETE": lambda: cluster.delete(WORKFLOW, "a"),
    }
    with pytest.raises(UnavailableError):
        calls[method]()
    assert len(api.seen(method)) == 1


def test_a_refusal_is_not_tried_again(api: FakeApi) -> None:
    api.rule(lambda _: status(403, "no"))
    with pytest.raises(UnauthorizedError):
        api.cluster().get(WORKFLOW, "a")
    assert len(api.requests) == 1


def test_the_servers_wish_how_long_to_wait_is_granted(api: FakeApi) -> None:
    pauses: list[float] = []
    api.add(WORKFLOW, workflow("a"))
    api.fail(status(429, "slow down", Retry_After="7"))
    api.cluster(clock=Clock(sleep=pauses.append, jitter=lambda low, _: low)).get(WORKFLOW, "a")
    assert pauses == [7.0]
    api.rule(lambda _: status(429, "slow down", Retry_After="7"))
    with pytest.raises(UnavailableError) as caught:
        api.cluster().get(WORKFLOW, "a")
    assert caught.value.retry_after_seconds == 7.0


def test_pauses_between_tries_grow_and_are_spread_at_random(api: FakeApi) -> None:
    asked: list[tuple[float, float]] = []

    def jitter(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    api.rule(lambda _: status(503, "busy"))
    with pytest.raises(UnavailableError):
        api.cluster(clock=Clock(sleep=lambda _: None, jitter=jitter)).get(WORKFLOW, "a")
    assert asked == [(0.0, 1.0), (0.0, 2.0)]


def test_a_silent_server_is_given_up_on_in_time(api: FakeApi) -> None:
    api.rule(lambda _: Answer(stall_seconds=3.0, body={}))
    # It would answer with an object, after 3 s.
    with pytest.raises(UnavailableError, match="no answer from http://127"):
        api.cluster(read_seconds=0.2).get(WORKFLOW, "a")


def test_an_answer_cut_off_in_the_middle_is_a_lost_connection(api: FakeApi) -> None:
    api.add(WORKFLOW, workflow("a"))
    api.fail(Answer(body={"x": "y" * 1000}, cut=True))
    assert api.cluster().get(WORKFLOW, "a")["metadata"]["name"] == "a"
    api.rule(lambda _: Answer(body={"x": "y" * 1000}, cut=True))
    with pytest.raises(UnavailableError, match="was lost"):
        api.cluster().get(WORKFLOW, "a")


def test_nobody_at_the_address_is_said_with_the_kubeconfig_that_names_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    cluster = Cluster(
        Target(f"https://127.0.0.1:{port}", "/k"), transport=urllib3.PoolManager(), clock=Clock(sleep=lambda _: None)
    )
    with pytest.raises(UnavailableError) as caught:
        cluster.version()
    assert str(caught.value) == (
        f"no cluster answers at https://127.0.0.1:{port} (connection refused): is it up? The kubeconfig /k names it"
    )


def test_a_server_without_tls_where_it_is_expected_is_named(api: FakeApi) -> None:
    cluster = Cluster(Target(api.url.replace("http:", "https:"), "/k"), transport=urllib3.PoolManager())
    with pytest.raises(UnavailableError, match="no trusted connection"):
        cluster.version()


def test_the_login_goes_with_each_request(api: FakeApi) -> None:
    tokens = iter(["one", "two"])
    cluster = api.cluster(authorise=lambda: {"Authorization": f"Bearer {next(tokens)}"})
    cluster.version()
    cluster.version()
    assert [r.headers["Authorization"] for r in api.requests] == ["Bearer one", "Bearer two"]


def test_a_right_is_asked_for_as_it_is_needed(api: FakeApi) -> None:
    api.denied.add(("delete", "workflows"))
    cluster = api.cluster()
    assert cluster.can_i("create", WORKFLOW)
    assert not cluster.can_i("delete", WORKFLOW)
    attributes = api.requests[0].body["spec"]["resourceAttributes"]
    assert attributes == {
        "verb": "create", "group": "argoproj.io", "resource": "workflows", "subresource": "", "namespace": "default",
    }  # fmt: skip
    cluster.can_i("get", CRD)
    assert api.requests[-1].body["spec"]["resourceAttributes"]["namespace"] == ""


def test_the_clocks_are_compared_by_the_servers_date(api: FakeApi) -> None:
    cluster = api.cluster()
    assert cluster.clock_skew_seconds() is None
    assert cluster.version() == "v1.34.4"
    skew = cluster.clock_skew_seconds()
    assert skew is not None
    assert abs(skew) < 5.0


def test_names_cannot_leave_their_place_in_the_path(api: FakeApi) -> None:
    with pytest.raises(NotFoundError):
        api.cluster().get(WORKFLOW, "../../secrets/x")
    assert api.requests == []  # no object can have such a name


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c.get(WORKFLOW, ""),
        lambda c: c.find(WORKFLOW, ""),
        lambda c: c.delete(WORKFLOW, ""),
        lambda c: c.patch(WORKFLOW, "", {}),
        lambda c: c.patch(WORKFLOW, "", {}, subresource="status"),
        lambda c: c.replace(WORKFLOW, "", {}),
        lambda c: list(c.logs("")),
    ],
)
def test_an_empty_name_never_means_all_objects(api: FakeApi, act: Callable[[Cluster], object]) -> None:
    with pytest.raises(InvalidError, match="name of the (Workflow|Pod) is empty"):
        act(api.cluster())
    assert api.requests == []


def test_the_next_page_is_on_its_way_before_this_one_is_parsed() -> None:
    happened: list[str] = []
    asked = threading.Event()

    def fetch(token: str) -> bytes:
        happened.append(f"fetch {token or 'first'}")
        if token:
            asked.set()
            return b'{"items":[3],"metadata":{"resourceVersion":"9"}}\n'
        return b'{"items":[{"metadata":{"name":"a"}}],"kind":"WorkflowList","metadata":{"continue":"t","x":"9"}}\n'

    def parse(raw: bytes) -> dict[str, Any]:
        happened.append("parse")
        if len(happened) == 2:
            assert asked.wait(60)
        parsed: dict[str, Any] = json.loads(raw)
        return parsed

    assert [page["items"][-1] for page in pages.read(fetch, parse)] == [{"metadata": {"name": "a"}}, 3]
    assert happened[0] == "fetch first"


@pytest.mark.parametrize(
    ("raw", "token"),
    [
        (b'{"items":[],"metadata":{"continue":"abc","resourceVersion":"1"}}', "abc"),
        (b'{"items":[],"metadata":{"resourceVersion":"1"}}\n', ""),
        (b'{"metadata":{"continue":"abc"},"items":[{"metadata":{"name":"a"}}]}', ""),
        (b"", ""),
        (b'"metadata":{', ""),
    ],
)
def test_the_token_of_the_next_page_is_found_at_the_end_or_not_at_all(raw: bytes, token: str) -> None:
    assert pages.continuation(raw) == token


def test_a_page_that_cannot_be_fetched_ahead_raises_where_it_is_wanted(api: FakeApi) -> None:
    for i in range(5):
        api.add(POD, {"metadata": {"name": f"p{i}"}})
    api.rule(lambda r: r.query.__setitem__("limit", "2"))
    api.rule(lambda r: status(403, "no more") if r.query.get("continue") else None)
    with pytest.raises(UnauthorizedError, match="no more"):
        api.cluster().list_all(POD)


def test_inside_a_pod_the_service_account_is_the_login(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("pod-token")
    as_in_a_pod(monkeypatch, api, tmp_path, namespace="lab\n")
    cluster = Cluster.connect()
    assert cluster.namespace == "lab"
    assert cluster.target.server == api.url.replace("http:", "https:")


def test_each_context_has_its_own_server_and_namespace(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "a",
                "clusters": [{"name": n, "cluster": {"server": f"http://{n}.example"}} for n in "ab"],
                "users": [{"name": "u", "user": {}}],
                "contexts": [
                    {"name": "a", "context": {"cluster": "a", "user": "u"}},
                    {"name": "b", "context": {"cluster": "b", "user": "u", "namespace": "lab"}},
                ],
            }
        )
    )
    first = Cluster.connect(kubeconfig=str(path))
    second = Cluster.connect(kubeconfig=str(path), context="b")
    assert (first.target.server, first.namespace, first.context) == ("http://a.example", "default", "a")
    assert (second.target.server, second.namespace, second.context) == ("http://b.example", "lab", "b")
    assert Cluster.connect(kubeconfig=str(path), namespace="mine").namespace == "mine"


@pytest.mark.parametrize(
    "body", ["404 page not found", {"kind": "Status", "message": "the server could not find the requested resource"}]
)
def test_a_server_that_knows_no_such_group_serves_none_of_its_kinds(body: Any) -> None:
    with serving() as api:
        api.fail(Answer(404, body.encode() if isinstance(body, str) else body), path="/apis/scheduling.k8s.io/")
        assert not api.cluster().serves(PRIORITY_CLASS)
