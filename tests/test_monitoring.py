"""`docs/metrics.md`, `manifests/monitoring` and the metrics of the processes agree; the alerts fire when they should.

The series are those of a run: an allocator and a controller over a fake API server in simulated time, whose registries
are scraped as Prometheus does it, and the registry of a server. promtool evaluates the rules on them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from cluster import packages
from cluster.errors import ClusterError
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.run.telemetry import Telemetry as AllocatorTelemetry
from diflow.controller.telemetry import Telemetry as ControllerTelemetry
from diflow.dijob.model import Health
from diflow.kube.kinds import WORKFLOW
from diflow.server.telemetry import Telemetry as ServerTelemetry
from tests.allocator import lab as allocator_lab
from tests.allocator.signs import Programs
from tests.controller import lab as controller_lab

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "manifests" / "monitoring"
STEP_SECONDS = 15
_ROW = re.compile(r"^\| `(diflow_\w+)` \| (\w+) \| *([^|]*?) *\|", re.MULTILINE)
_NAME = re.compile(r"\bdiflow_(?:allocator|controller|server)_\w+")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


class Still:
    """An elector that does not lead."""

    def is_leader(self) -> bool:
        return False


def registries() -> list[CollectorRegistry]:
    """The registries of the three processes."""
    return [
        AllocatorTelemetry(Still()).registry,  # type: ignore[arg-type]
        ControllerTelemetry().registry,
        ServerTelemetry().registry,
    ]


def metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The type and the labels of each metric, as Prometheus names it."""
    out = {}
    for registry in registries():
        for family in registry.collect():
            if not family.name.startswith("process_"):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                out[name] = family.type, labels(registry, family.name)
    return out


def labels(registry: CollectorRegistry, name: str) -> tuple[str, ...]:
    collector = registry._names_to_collectors.get(name)
    return (
        tuple(getattr(collector, "_labelnames", ())) if collector is not None else ("object",)
    )  # a collector of the controller's own


def rules() -> list[Json]:
    (group,) = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    found: list[Json] = group["rules"]
    return found


def queries() -> list[str]:
    """The expressions of the dashboard."""
    panels = json.loads((FOLDER / "diflow.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


# --- what is written down ---------------------------------------------------------------------------------------------


def test_the_page_lists_each_metric_with_its_type_and_labels_and_no_others() -> None:
    rows = _ROW.findall((ROOT / "docs" / "metrics.md").read_text())
    assert len({name for name, _, _ in rows}) == len(rows)
    assert {name: (kind, tuple(re.findall(r"`(\w+)`", of))) for name, kind, of in rows} == metrics()


def test_the_page_lists_each_alert() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"`(Diflow\w+)`", text)) == {rule["alert"] for rule in rules()}


def test_the_alerts_and_the_dashboard_use_only_metrics_that_exist() -> None:
    named = {
        _SUFFIX.sub("", name) for text in [*queries(), *(r["expr"] for r in rules())] for name in _NAME.findall(text)
    }
    assert len(named) > 20
    assert named - metrics().keys() == set()


def test_the_dashboard_shows_each_metric() -> None:
    shown = {_SUFFIX.sub("", name) for text in queries() for name in _NAME.findall(text)}
    assert metrics().keys() - shown == set()


def test_the_panels_of_the_dashboard_have_a_place_of_their_own() -> None:
    panels = json.loads((FOLDER / "diflow.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_pods_of_the_monitor_have_its_port() -> None:
    (monitor,) = yaml.safe_load_all((FOLDER / "podmonitor.yaml").read_text())
    (chosen,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    found = {}
    for name in ("allocator", "controller", "server"):
        for obj in yaml.safe_load_all((ROOT / "manifests" / name / "deployment.yaml").read_text()):
            if obj["kind"] == "Deployment":
                template = obj["spec"]["template"]
                ports = {port["name"] for c in template["spec"]["containers"] for port in c.get("ports", [])}
                found[template["metadata"]["labels"][chosen["key"]]] = ports
    assert set(found) == set(chosen["values"])
    assert all(endpoint["port"] in ports for ports in found.values())


# --- a run ------------------------------------------------------------------------------------------------------------


class Recording:
    """The series of registries over time, in the notation of promtool."""

    def __init__(self) -> None:
        self._series: dict[str, list[str]] = {}
        self._length = 0

    def scrape(self, *scraped: CollectorRegistry) -> None:
        """Take one sample of each series; those that are not there any more have none."""
        now = {
            _series(sample.name, sample.labels): f"{sample.value:g}"
            for registry in scraped
            for family in registry.collect()
            for sample in family.samples
            if sample.name.startswith("diflow_") and not sample.name.endswith(("_created", "_bucket"))
        }
        for name in now.keys() - self._series.keys():
            self._series[name] = ["_"] * self._length
        for name, values in self._series.items():
            values.append(now.get(name, "stale" if values and values[-1] not in ("stale", "_") else "_"))
        self._length += 1

    @property
    def seconds(self) -> int:
        return self._length * STEP_SECONDS

    def input_series(self) -> list[Json]:
        return [{"series": name, "values": " ".join(values)} for name, values in sorted(self._series.items())]


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recording], dict[int, set[str]]]:
    """Evaluates the rules on a recording: the alerts that fire at its quarters, by seconds."""
    program = find_promtool()
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.yaml").write_text(json.dumps({"groups": [{"name": "diflow", "rules": rules()}]}))
    checked = [
        {"record": f"query:{i}", "expr": text.replace("$__rate_interval", "1m")} for i, text in enumerate(queries())
    ]
    (folder / "queries.yaml").write_text(json.dumps({"groups": [{"name": "queries", "rules": checked}]}))
    for name in ("rules.yaml", "queries.yaml"):
        done = subprocess.run(
            [program, "check", "rules", name], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def fired(recording: Recording) -> dict[int, set[str]]:
        return {
            at: _fires(program, folder, recording, at)
            for at in (0, recording.seconds // 2, recording.seconds - STEP_SECONDS)
        }

    return fired


def find_promtool() -> str:
    """promtool of the Debian package prometheus, which is installed as those of the clusters are, where possible."""
    if shutil.which("promtool") is None:
        try:
            packages.require({"promtool": "prometheus"}, lambda _: None)
        except ClusterError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"promtool is not installed: {error}")
    return shutil.which("promtool") or "/usr/bin/promtool"


def _fires(program: str, folder: Path, recording: Recording, at: int) -> set[str]:
    """The alerts that fire at a time: promtool compares them with none, and names the others."""
    expected = [{"eval_time": f"{at}s", "alertname": rule["alert"], "exp_alerts": []} for rule in rules()]
    test = {"interval": f"{STEP_SECONDS}s", "input_series": recording.input_series(), "alert_rule_test": expected}
    config = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (folder / "test.yaml").write_text(json.dumps(config))
    done = subprocess.run(
        [program, "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    found = set(re.findall(r"alertname: ?(\w+)", told))
    assert done.returncode == (1 if found else 0), told
    return found


class Faulty:
    """The policy `fit`, until it is broken."""

    def __init__(self) -> None:
        self.is_broken = False
        self._policy = load_policy("fit", PolicySettings())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def optimize(self, snapshot: Snapshot) -> Plan:
        if self.is_broken:
            raise ZeroDivisionError("oh")
        return self._policy.optimize(snapshot)


@pytest.fixture
def policy() -> Faulty:
    return Faulty()


@pytest.fixture
def at(policy: Faulty) -> Iterator[allocator_lab.Lab]:
    with allocator_lab.lab(policy=policy) as found:
        found.cluster.node("a", cpu="4", pods="20")
        yield found


def telemetry_of(at: allocator_lab.Lab) -> AllocatorTelemetry:
    assert at.daemon is not None
    made = AllocatorTelemetry(at.daemon.elector, clock=at.time.clock)
    made.watch(at.daemon.allocator)
    at.daemon.allocator._on_cycle = made.cycle
    return made


def run(at: allocator_lab.Lab, recording: Recording, *scraped: CollectorRegistry, minutes: float) -> None:
    for _ in range(int(minutes * 60 / STEP_SECONDS)):
        for _ in range(5):
            at.step(STEP_SECONDS / 5)
        recording.scrape(*scraped)


Fired = Callable[[Recording], dict[int, set[str]]]


def test_nothing_fires_while_jobs_come_and_run_and_a_node_is_cordoned(at: allocator_lab.Lab, promtool: Fired) -> None:
    recording, telemetry = Recording(), telemetry_of(at)
    at.cluster.node("b", cpu="4", pods="20")
    at.cluster.cordon("b")
    at.cluster.submit(allocator_lab.job("one"))
    at.cluster.submit(allocator_lab.job("waits", allocator_lab.task(cpu="64")))
    run(at, recording, telemetry.registry, minutes=12)
    assert set().union(*promtool(recording).values()) == set()
    assert telemetry.registry.get_sample_value("diflow_allocator_left_out_nodes", {"reason": "cordoned"}) == 1
    assert (telemetry.registry.get_sample_value("diflow_allocator_longest_wait_seconds") or 0) > 600


def test_a_policy_that_fails_a_node_that_is_silent_and_a_job_that_waits_too_long(
    at: allocator_lab.Lab, policy: Faulty, promtool: Fired
) -> None:
    recording, telemetry = Recording(), telemetry_of(at)
    at.cluster.node("b", cpu="4", pods="20")
    at.cluster.submit(allocator_lab.job("waits", allocator_lab.task(cpu="64")))
    run(at, recording, telemetry.registry, minutes=1)
    obj = at.cluster.workflow("waits")
    created = datetime.fromtimestamp(at.cluster.wall() - 6 * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    at.api.add(WORKFLOW, {**obj, "metadata": {**obj["metadata"], "creationTimestamp": created}})
    at.cluster.silence("b")
    run(at, recording, telemetry.registry, minutes=13)
    assert promtool(recording)[recording.seconds - STEP_SECONDS] == {"DiflowNodeLeftOut", "DiflowJobStarved"}
    policy.is_broken = True
    at.cluster.submit(allocator_lab.job("one"))
    run(at, recording, telemetry.registry, minutes=5)
    assert "DiflowPlanFailing" in promtool(recording)[recording.seconds - STEP_SECONDS]


def test_an_allocator_and_a_controller_that_do_not_lead_or_are_gone(at: allocator_lab.Lab, promtool: Fired) -> None:
    recording, telemetry = Recording(), telemetry_of(at)
    with controller_lab.lab() as other:
        assert other.process is not None
        assert at.daemon is not None
        controller = ControllerTelemetry()
        controller.watch(other.process.controller)
        for _ in range(4):
            other.step()
            run(at, recording, telemetry.registry, controller.registry, minutes=0.25)
        # The Leases expire; the processes are still there.
        at.daemon.line.is_cut = other.process.line.is_cut = at.is_silent = True
        for _ in range(16):
            at.pass_time(STEP_SECONDS)
            other.pass_time(STEP_SECONDS)
            recording.scrape(telemetry.registry, controller.registry)
    both = {"DiflowAllocatorLeaderMissing", "DiflowControllerLeaderMissing"}
    found = promtool(recording)
    assert found[0] == set()
    assert found[recording.seconds - STEP_SECONDS] == both
    for _ in range(40):  # nor are they there any more
        recording.scrape()
    assert promtool(recording)[recording.seconds - STEP_SECONDS] == both


def test_what_is_not_installed_is_not_missing(promtool: Fired) -> None:
    recording, server = Recording(), ServerTelemetry()
    for _ in range(40):
        recording.scrape(server.registry)
    assert set().union(*promtool(recording).values()) == set()


def test_a_server_that_refuses_and_one_that_is_not_ready(promtool: Fired) -> None:
    trouble = ""
    telemetry = ServerTelemetry(trouble=lambda: trouble)
    recording = Recording()
    for sample in range(80):
        for _ in range(10 if sample >= 10 else 0):
            telemetry.refusal(503, "too many connections")
        trouble = "the caches are old" if sample >= 60 else ""
        recording.scrape(telemetry.registry)
    found = promtool(recording)
    assert found[0] == set()
    assert found[recording.seconds // 2] == {"DiflowServerRefusing"}
    assert found[recording.seconds - STEP_SECONDS] == {"DiflowServerRefusing", "DiflowServerNotReady"}


def test_a_job_whose_replicas_stand_still(at: allocator_lab.Lab, promtool: Fired) -> None:
    recording, telemetry = Recording(), telemetry_of(at)
    health = Health(progress_seconds=60)
    at.cluster.submit(allocator_lab.job("one", allocator_lab.task(replicas=2), health=health))
    programs = Programs(at, "one", lambda _, seconds: min(int(seconds), 120))
    for _ in range(80):
        programs.run(STEP_SECONDS, every=5.0)
        recording.scrape(telemetry.registry)
    found = promtool(recording)
    assert found[recording.seconds // 2] == set()
    assert found[recording.seconds - STEP_SECONDS] == {"DiflowJobStalled"}
    assert telemetry.registry.get_sample_value("diflow_allocator_unhealthy_jobs", {"state": "stalled"}) == 1
