"""The server in pods, from `manifests/server`, beside an allocator: what jobs ask for comes true, and what they report
counts.

The jobs' pods are real: they call the server with the tokens that they find, by `diflow.client`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.common import keys
from tests.clusters import CommandError, TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import Daemon, daemon, kept_alive, status, submit, until_running
from tests.e2e.live import Live, pod_name
from tests.server import dingine

pytestmark = [pytest.mark.xdist_group("server"), pytest.mark.usefixtures("running")]

_IMAGE = "docker.io/diflow/diflow:0.2.0"
# They end or fail on request by a file, and exit with 143 on SIGTERM.
_COMMAND = "trap 'exit 143' TERM; until [ -e /tmp/done ]; do [ ! -e /tmp/crash ] || exit 3; sleep 0.3; done"
# A restart cost of one second, so that even a young job is moved.
_BY_REPORTS = {
    "DIFLOW_ALLOCATOR_POLICY": "goodput",
    "DIFLOW_POLICY_RESTART_SECONDS": "1",
    "DIFLOW_POLICY_LARGEST_START": "1",  # so that a report alone makes a job grow
}


@pytest.fixture(scope="module")
def live(argo40: TestCluster) -> Iterator[Live]:
    """A namespace for jobs, with a server and an allocator for it."""
    with argo40.namespace("rest") as namespace, pytest.MonkeyPatch.context() as patch:
        home = Live(argo40, f"{namespace}-system")
        setting = "DIFLOW_SERVER_WATCHED_NAMESPACE"
        with installing.installed(argo40, "server", home=home.namespace, watched=namespace, setting=setting):
            installing.grant(argo40, "shards", home=home.namespace, watched=namespace)
            home.kubectl("rollout", "status", "deployment/diflow-server", "--timeout=280s")
            patch.setenv("DIFLOW_SERVER_URL", f"http://diflow-server.{home.namespace}.svc.cluster.local:8081")
            yield Live(argo40, namespace)


@pytest.fixture(scope="module")
def running(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    log = tmp_path_factory.mktemp("server") / "allocator.log"
    with daemon(live, log, **_BY_REPORTS) as made, kept_alive(made):
        yield made


def test_the_flow_of_a_job_from_its_submission_to_its_end(live: Live) -> None:
    # 1. A job is submitted: a learner and a collector.
    name = submit(live, _job("flow", learner=(1, 1), collector=(1, 1)))
    # 2. The allocator admits both together, and they run.
    first = _by_host(until_running(live, name, 2))
    learner = pod_name(first["flow-learner-0"])
    # 3. They know each other, and their server, from their environment; the server says where they are, by rank.
    assert _ask(live, learner, "print(client.in_job())") == "True"
    assert _replicas(live, learner) == _sorted_by_rank(first)
    # 4. The learner requests one more collector, and it runs. The other pods are unchanged.
    _ask(live, learner, "client.add_replicas(1, 'collector')")
    second = _by_host(until_running(live, name, 3))
    assert {host: second[host]["metadata"]["uid"] for host in first} == _uids(first)
    wait_until("the new one has its rank", lambda: _replicas(live, learner) == _sorted_by_rank(second))
    _parse_as_di_engine(live, second)
    # 5. It requests one fewer: only the newest is stopped.
    _ask(live, learner, "client.delete_replicas(1, 'collector')")
    third = _by_host(until_running(live, name, 2))
    assert _uids(third) == _uids(first)
    wait_until("it is no longer among them", lambda: _replicas(live, learner) == _sorted_by_rank(first))
    # 6. A failed replica is retried, and is listed with its new address.
    _exec(live, pod_name(third["flow-collector-0"]), "touch /tmp/crash")
    fourth = wait_until("the collector has a new pod", lambda: _new_pods(live, name, "flow-collector-0", third))
    wait_until("it is found there", lambda: _replicas(live, learner) == _sorted_by_rank(fourth))
    # 7. It reports its speed, which is written into the Workflow.
    _ask(live, learner, "client.report(speed=120.0, step=7, batch=32); client.close(20)")
    told = wait_until(
        "the report is written", lambda: json.loads(_parameter(live, name, keys.PARAM_PROFILINGS) or "{}")
    )
    assert told["ranks"]["0"]["speed"] == 120.0
    # 8. An invalid request is refused, and changes nothing.
    assert "409" in _ask(live, learner, _caught("client.delete_replicas(5, 'collector')"))
    assert "400" in _ask(live, learner, _caught("client.add_replicas(1, 'nobody')"))
    # 9. All pods end, the job succeeds, and its objects are deleted.
    for pod in _by_host(until_running(live, name, 2)).values():
        _exec(live, pod_name(pod), "touch /tmp/done")
    live.ends(name, "Succeeded")
    assert status(live, name).restarts == 1


def test_what_a_preemptible_job_reports_changes_its_allocation(live: Live) -> None:
    name = submit(live, _job("elastic", worker=(1, 3), preemptible=True))
    (pod,) = until_running(live, name, 1)
    # By its report it is three times as fast with three replicas: it gets more of them, in a new round.
    report = "from diflow import client\nclient.report(speed=100.0, batch=32, step=1); client.close(20)"
    # The pod is replaced so soon that the program may not end by itself.
    live.exec(pod_name(pod), "python3", "-c", report, check=False)
    wait_until("it has a new round", lambda: _parameter(live, name, keys.PARAM_CURRENT) != "1")
    grown = wait_until("more of them run", lambda: _more_than_one(live, name))
    assert pod["metadata"]["uid"] not in {p["metadata"]["uid"] for p in grown}
    assert status(live, name).restarts == 0
    live.delete(name)


def test_a_token_is_good_for_its_own_job_alone(live: Live) -> None:
    for name in ("mine", "theirs"):
        submit(live, _job(name, learner=(1, 1)))
    mine, theirs = (pod_name(until_running(live, name, 1)[0]) for name in ("mine", "theirs"))
    assert _status_of(live, mine, "mine") == 200
    assert _status_of(live, mine, "theirs") == 403
    assert _status_of(live, mine, "nobody") == 403, "what does not exist and what is not yours look the same"
    assert _status_of(live, mine, "mine", token="") == 401
    assert _status_of(live, theirs, "mine", token=_token(live, mine)) == 200, "the token says who asks"
    live.delete("mine")
    wait_until("its pod is gone", lambda: not [p for p in live.pods("mine") if p["status"]["phase"] == "Running"])
    live.delete("theirs")


def test_shards_survive_the_kill_of_a_worker_and_of_a_server(live: Live) -> None:
    program = "from diflow import client; import time\n"
    program += "with client.shards(dataset='train', size=80, shard=1, prefetch=2) as shards:\n"
    program += " for shard in shards: print('seen', shard.start, flush=True); time.sleep(0.25)"
    job = _job("reading", reader=(2, 2))
    job.tasks[0].template["spec"]["containers"][0]["command"] = ["python3", "-c", program]
    name = submit(live, job)
    pods = {pod["metadata"]["name"] for pod in until_running(live, name, 2)}
    wait_until("both have read some", lambda: all(len(_seen(live, pod)) > 8 for pod in pods))
    killed = min(pods)
    find = "tr '\\0' ' ' < $p/cmdline | grep -q '[p]ython3 -c'"
    _exec(live, killed, f"for p in /proc/[0-9]*; do {find} && kill -9 ${{p#/proc/}}; done; true")
    system = Live(live.cluster, f"{live.namespace}-system")
    server = next(p for p in system.kubectl("get", "pods", "-o", "name").split() if "diflow-server" in p)
    system.kubectl("delete", server, "--wait=false")
    wait_until("the worker is made again", lambda: len(live.pods(name)) == 3)
    live.ends(name, "Succeeded")
    seen = {pod["metadata"]["name"]: _seen(live, pod["metadata"]["name"]) for pod in live.pods(name)}
    counts = Counter(index for each in seen.values() for index in each)
    assert counts.keys() == set(range(80)), "none is lost"
    twice = {index for index, count in counts.items() if count > 1}
    assert twice <= set(seen[killed][-8:]), "only what was not reported is repeated"


def test_the_server_writes_no_configmaps_but_those_of_shards(live: Live) -> None:
    account = f"--as=system:serviceaccount:{live.namespace}-system:diflow-server"
    with pytest.raises(CommandError, match="writes no ConfigMaps but those of data shards"):
        live.kubectl("create", "configmap", "other", account)
    live.kubectl("create", "configmap", "diflow-shards-none", account)
    live.kubectl("delete", "configmap", "diflow-shards-none")


def _parse_as_di_engine(live: Live, pods: Mapping[str, Any]) -> None:
    """DI-engine's own parser finds the addresses of the nodes in the variables of each pod."""
    for host, pod in pods.items():
        lines = live.exec(pod_name(pod), "env").splitlines()
        environ = dict(line.split("=", 1) for line in lines if line.startswith("DI_"))
        nodes = environ["DI_NODES"].split(",")
        found = dingine.parsed(environ, topology="star", ports=50515)
        assert found["address"].split(".")[0] == host
        assert found["node_ids"] == int(environ["DI_RANK"])
        assert found["attach_to"] == ("" if environ["DI_RANK"] == "0" else f"tcp://{nodes[0]}:50515")


def _seen(live: Live, pod: str) -> list[int]:
    """The samples in the log of a pod, in order."""
    return [int(line.split()[1]) for line in live.logs(pod).splitlines() if line.startswith("seen ")]


def _job(name: str, *, preemptible: bool = False, **tasks: tuple[int, int]) -> DIJob:
    """A job with (minimum, maximum) replicas of each task; it starts with the minimum."""
    made = []
    for task, (low, high) in tasks.items():
        container = {
            "name": "di-container",
            "image": _IMAGE,
            "command": ["sh", "-c", _COMMAND],
            "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        }
        bounds = {"min_replicas": low, "max_replicas": high} if preemptible else {}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 5}
        kind = task if task in ("learner", "collector") else "none"
        made.append(
            Task(type=kind, name=task, replicas=high if preemptible else low, template={"spec": spec}, **bounds)
        )
    return DIJob(name=name, tasks=tuple(made), scheduling="gang", preemptible=preemptible)


def _ask(live: Live, pod: str, code: str) -> str:
    """The output of a program in a pod of a job."""
    return live.exec(pod, "python3", "-c", f"from diflow import client\n{code}").strip()


def _caught(call: str) -> str:
    return f"try:\n    {call}\nexcept Exception as error:\n    print(getattr(error, 'status', ''), error)"


def _exec(live: Live, pod: str, script: str) -> None:
    live.exec(pod, "sh", "-c", script)


def _replicas(live: Live, pod: str) -> list[str]:
    found: list[str] = json.loads(_ask(live, pod, "import json; print(json.dumps(client.replicas()))"))
    return found


def _token(live: Live, pod: str) -> str:
    return live.exec(pod, "sh", "-c", 'cat "$DI_TOKEN_FILE"').strip()


def _status_of(live: Live, pod: str, name: str, token: str | None = None) -> int:
    """The status of GET replicas of the job `name`, sent from a pod with a token (by default its own)."""
    given = _token(live, pod) if token is None else token
    code = (
        "import os, requests\n"
        f"headers = {{'Authorization': 'Bearer {given}'}} if {bool(given)} else {{}}\n"
        f"url = os.environ['DI_SERVER_URL'] + '/v2alpha1/{live.namespace}.{name}/replicas'\n"
        "print(requests.get(url, headers=headers, timeout=20).status_code)"
    )
    return int(live.exec(pod, "python3", "-c", code))


def _by_host(pods: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["labels"][keys.POD]: pod for pod in pods}


def _uids(pods: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {host: pod["metadata"]["uid"] for host, pod in pods.items()}


def _address(pod: dict[str, Any]) -> str:
    return f"{pod['status']['podIP']}:{keys.PORT}"


def _sorted_by_rank(pods: dict[str, dict[str, Any]]) -> list[str]:
    """The addresses of the pods, the learner's first: as the job's tasks are."""
    order = sorted(pods, key=lambda host: ("learner" not in host, host))
    return [_address(pods[host]) for host in order]


def _new_pods(live: Live, name: str, host: str, before: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    pods = _by_host([p for p in live.pods(name) if p["status"].get("phase") == "Running"])
    if host not in pods or pods[host]["metadata"]["uid"] == before[host]["metadata"]["uid"]:
        return None
    return pods if len(pods) == len(before) else None


def _more_than_one(live: Live, name: str) -> list[dict[str, Any]] | None:
    pods = [p for p in live.pods(name) if p["status"].get("phase") == "Running"]
    alone = {p["metadata"]["labels"][keys.ROUND] for p in pods} == {_parameter(live, name, keys.PARAM_CURRENT)}
    return pods if len(pods) > 1 and alone else None


def _parameter(live: Live, name: str, parameter: str) -> str:
    parameters = live.workflow(name)["spec"]["arguments"]["parameters"]
    return next((str(item["value"]) for item in parameters if item["name"] == parameter), "")
