"""Quality and speed of the policies against published figures, as text and JSON; non-zero if one exceeds its limit.

    python -m benchmarks.policies --data ../shared/data/pollux [--out out/policies] [--laws 2000] [--full]
    python -m benchmarks.policies --data ../shared/data --only sia
    python -m benchmarks.policies --only streams [--streams 20] [--policy fair]

Quality replays the four workloads; `--full` adds other restart costs, noise, interference, and half and double load.
Sia replays the workloads of Sia's artifact on its cluster of three pools (`--data` then has the folder `sia`).
Speed is CPU time of one call on one core. Laws counts the snapshots on which each policy was checked, and violations.
Streams plays random streams of jobs in three queues at three loads and checks the aims. Only quality and sia need data.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks import streams
from benchmarks.policies_speed import SIZES, measure
from benchmarks.queue_streams.streams import Kind, Offers
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.labs.simulator.memory import Memory, poisoned
from diflow.labs.simulator.metrics import Metrics, metrics
from diflow.labs.simulator.replay import Pool, Scenario, replay
from diflow.labs.simulator.truth import load, load_pools, read_workload

POLLUX = {"1": 2089.0, "2": 3323.0, "3": 2188.0, "4": 2721.0}
"""Mean completion time of Pollux's published runs, s."""
POLLUX_P99 = {"1": 39105.0, "2": 43324.0, "3": 14570.0, "4": 51976.0}
"""99th percentile of the completion times of these runs, s; over all eight published workloads 46,882 s."""
OPTIMUS = {"1": 4087.0, "2": 6914.0, "3": 3944.0, "4": 5968.0}
"""Mean completion time of the artifact's runs of Optimus, s."""
SIA = {"philly": ("philly-1", "philly-2", "philly-3"), "newtrace": ("newtrace-1", "newtrace-2")}
SIA_PUBLISHED = {"philly": (0.6, 9.5), "newtrace": (0.7, 4.6)}
"""Mean completion time and its 99th percentile of Sia's published runs, h."""
SIA_CLUSTER = Scenario(
    pools=(Pool("t4", 6, 4), Pool("rtx", 3, 8), Pool("a100", 2, 8)),
    profiled=True,
    report_progress=False,
    restart_by_application={
        "ncf": 15.0,
        "deepspeech2": 25.0,
        "cifar10": 50.0,
        "yolov3": 80.0,
        "bert": 120.0,
        "imagenet": 250.0,
    },
)
SIA_LOCAL = {("rtx", "deepspeech2"): 57}
"""The largest batch of a replica, where that is less than what was measured."""
PARTS = ("quality", "sia", "speed", "laws", "streams")
RANGES = Path(__file__).with_name("policies_ranges.json")
CALLS = {40: 60, 500: 20, 10_000: 5}
VARIANTS: tuple[tuple[str, Callable[[Scenario], Scenario]], ...] = (
    ("restart 60 s", lambda w: replace(w, restart_seconds=60.0)),
    ("restart 120 s", lambda w: replace(w, restart_seconds=120.0)),
    ("noise 20 %", lambda w: replace(w, noise=0.2)),
    ("interference 50 %", lambda w: replace(w, interference=0.5)),
    ("load 0.5", lambda w: replace(w, load=0.5)),
    ("load 2", lambda w: replace(w, load=2.0)),
    ("no progress reported", lambda w: replace(w, report_progress=False)),
    ("half tell progress", lambda w: replace(w, progress_share=0.5)),
)
REMEMBERED = (
    ("progress reported", Scenario(), 0.0),
    ("no progress reported", Scenario(report_progress=False), 0.0),
    ("poisoned", Scenario(), 1.0),
)
"""Runs with a memory: scenario, and σ of the factors by which the memory is off."""
GROWTH: tuple[tuple[str, dict[str, Any]], ...] = (
    ("start 1", {"largest_start": 1}),
    ("growth 4", {"largest_growth": 4.0}),
)
"""Other rules of growth than the default, a start on up to 4 replicas and growth to twice what was observed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with traces/ and workloads/, or with pollux/")
    parser.add_argument("--out", type=Path, default=Path("out/policies"))
    parser.add_argument("--laws", type=int, default=1000, help="random snapshots to judge each policy on")
    parser.add_argument("--full", action="store_true", help="other scenarios too")
    parser.add_argument("--skip-speed", action="store_true")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone; again for another one")
    parser.add_argument("--streams", type=int, default=200, help="random streams at each load")
    parser.add_argument("--first-seed", type=int, default=0, help="of the streams")
    parser.add_argument("--load", type=float, action="append", help="of the streams; again for another one")
    parser.add_argument("--policy", action="append", help="to play the streams under; again for another one")
    parser.add_argument("--offers", choices=get_args(Offers), default="shares", help="what the streams' queues offer")
    parser.add_argument("--elastic", type=float, default=0.0, help="part of the streams' jobs that can shrink")
    parser.add_argument("--priorities", type=int, default=1, help="how many priorities the streams' jobs have")
    given = parser.parse_args(arguments)
    parts = given.only or [part for part in PARTS if part != "speed" or not given.skip_speed]
    if {"quality", "sia"} & set(parts) and given.data is None:
        parser.error("--data is needed: the folder with traces/ and workloads/ (or --only streams, which needs none)")
    if "sia" in parts and not (given.data / "sia").is_dir():
        if given.only:
            parser.error(f"--only sia needs the folder {given.data / 'sia'}")
        parts.remove("sia")
    ranges = json.loads(RANGES.read_text())
    behind: list[str] = []
    result: dict[str, Any] = {}
    if "sia" in parts:
        result["sia"] = pools(given.data / "sia", ranges["sia"], behind)
    if "quality" in parts:
        if (given.data / "pollux").is_dir():
            given.data /= "pollux"
        result["quality"] = quality(given.data, ranges["quality"], behind)
        result["memory"] = remembered(given.data, ranges["memory"], behind)
        result["optimus"] = baseline(given.data, ranges["optimus_within"], behind)
        if given.full:
            result["scenarios"] = scenarios(given.data)
    if "speed" in parts:
        result["speed"] = speed(ranges, behind)
    if "laws" in parts:
        result["laws"] = laws(given.laws, behind)
    if "streams" in parts:
        result["streams"] = streams.measure(
            given.policy or list(streams.POLICIES),
            behind,
            streams=given.streams,
            first_seed=given.first_seed,
            loads=given.load or streams.LOADS,
            kind=Kind(offers=given.offers, elastic=given.elastic, priorities=tuple(range(given.priorities))),
            say=_say,
        )
    result["behind"] = behind
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "policies.json").write_text(json.dumps(result, indent=2) + "\n")
    _say(f"\nwrote {given.out / 'policies.json'}")
    for line in behind:
        _say(f"BEHIND: {line}")
    return 1 if behind else 0


def quality(data: Path, limits: dict[str, Any], behind: list[str]) -> dict[str, Any]:
    """The four workloads under goodput, beside Pollux's published means. Tuned on 1 and 2 alone."""
    apps = load(data / "traces")
    rows: dict[str, Metrics] = {}
    _say("workload   mean s   Pollux   ratio   p99 s  Pollux  restarts  fairness worst  > 2")
    for name, published in POLLUX.items():
        row = rows[name] = metrics(
            replay(read_workload(data / f"workloads/workload-{name}.csv"), apps, load_policy("goodput"))
        )
        _say(
            f"{name:8} {row.mean:8.0f} {published:8.0f} {row.mean / published:7.3f} {row.p99:7.0f} "
            f"{POLLUX_P99[name]:7.0f} {row.restarts:9.2f} {row.worst_fairness:15.2f} {row.very_unfair_share:5.1%}"
        )
        for what, value, limit in (
            ("mean", row.mean, limits["mean"][name]),
            ("p99", row.p99, limits["p99"][name]),
            ("restarts", row.restarts, limits["restarts"]),
            ("share above 2", row.very_unfair_share, limits["very_unfair_share"]),
        ):
            if value > limit:
                behind.append(f"workload {name}: {what} {value:.4g} is above {limit:g}")
    ratio = float(np.mean([rows[name].mean / POLLUX[name] for name in POLLUX]))
    _say(f"mean of the ratios {ratio:.3f}")
    if ratio > limits["mean_over_pollux"]:
        behind.append(f"mean of the ratios to Pollux {ratio:.3f} is above {limits['mean_over_pollux']}")
    # Pollux does not know the progress of jobs, so this is the comparison like for like.
    silent = Scenario(report_progress=False)
    alike = {
        name: metrics(
            replay(read_workload(data / f"workloads/workload-{name}.csv"), apps, load_policy("goodput"), silent)
        )
        for name in POLLUX
    }
    untold = [row.mean / POLLUX[name] for name, row in alike.items()]
    _say(
        f"no progress reported: ratios {' '.join(f'{one:.3f}' for one in untold)}, mean {np.mean(untold):.3f}; "
        f"p99 over Pollux's {' '.join(f'{row.p99 / POLLUX_P99[name]:.2f}' for name, row in alike.items())}; "
        f"restarts {np.mean([row.restarts for row in alike.values()]):.2f}"
    )
    most = limits["no_progress_over_pollux"]
    if np.mean(untold) > most:
        behind.append(f"no progress reported: mean of the ratios to Pollux {np.mean(untold):.3f} is above {most}")
    return {
        "workloads": {k: v.as_dict() for k, v in rows.items()},
        "no_progress": {k: v.as_dict() for k, v in alike.items()},
        "pollux": POLLUX,
        "mean_ratio": ratio,
        "mean_ratio_no_progress": float(np.mean(untold)),
    }


def pools(data: Path, limits: dict[str, Any], behind: list[str]) -> dict[str, Any]:
    """The workloads of Sia's artifact on its cluster of three types of GPU, no progress reported."""
    apps = load_pools(data / "traces", [pool.name for pool in SIA_CLUSTER.pools], SIA_LOCAL)
    out: dict[str, Any] = {}
    _say("workload     mean h   p99 h  restarts  GPU h a job  call p95 ms")
    for kind, names in SIA.items():
        rows = {}
        for name in names:
            row = rows[name] = metrics(
                replay(read_workload(data / f"workloads/{name}.csv"), apps, load_policy("goodput"), SIA_CLUSTER)
            )
            _say(
                f"{name:10} {row.mean / 3600:8.3f} {row.p99 / 3600:7.2f} {row.restarts:9.2f} "
                f"{row.gpu_hours / row.jobs:12.2f} {row.decision_cpu_ms:12.1f}"
            )
            if row.p99 / 3600 > limits["p99"][name]:
                behind.append(f"{name}: p99 {row.p99 / 3600:.2f} h is above {limits['p99'][name]}")
        mean = float(np.mean([row.mean for row in rows.values()])) / 3600
        published, tail = SIA_PUBLISHED[kind]
        _say(f"{kind}: mean {mean:.3f} h; Sia as published {published} h, p99 {tail} h")
        if mean > limits["mean"][kind]:
            behind.append(f"{kind}: mean {mean:.3f} h is above {limits['mean'][kind]}")
        out[kind] = {"workloads": {name: row.as_dict() for name, row in rows.items()}, "mean_hours": mean}
    return out


def remembered(data: Path, limits: dict[str, Any], behind: list[str]) -> dict[str, Any]:
    """The four workloads with the memory that the jobs of the first one leave, right and poisoned."""
    apps = load(data / "traces")
    loads = {name: read_workload(data / f"workloads/workload-{name}.csv") for name in POLLUX}
    past = Memory()
    replay(loads["1"], apps, load_policy("goodput"), memory=past)
    out: dict[str, Any] = {}
    for label, scenario, sigma in REMEMBERED:
        records = poisoned(past.records, sigma) if sigma else past.records
        rows = {
            name: metrics(replay(jobs, apps, load_policy("goodput"), scenario, memory=Memory(dict(records))))
            for name, jobs in loads.items()
        }
        ratios = [row.mean / POLLUX[name] for name, row in rows.items()]
        restarts = float(np.mean([row.restarts for row in rows.values()]))
        _say(
            f"memory, {label:22} ratios {' '.join(f'{ratio:.3f}' for ratio in ratios)}, mean {np.mean(ratios):.3f}; "
            f"p99 over Pollux's {' '.join(f'{row.p99 / POLLUX_P99[name]:.2f}' for name, row in rows.items())}; "
            f"restarts {restarts:.2f}"
        )
        out[label] = {"workloads": {k: v.as_dict() for k, v in rows.items()}, "mean_ratio": float(np.mean(ratios))}
        for what, value in (("mean of the ratios", float(np.mean(ratios))), ("restarts", restarts)):
            if value > limits[label][what]:
                behind.append(f"memory, {label}: {what} {value:.3f} is above {limits[label][what]}")
    return out


def baseline(data: Path, within: float, behind: list[str]) -> dict[str, float]:
    """The baseline Optimus beside the artifact's own runs."""
    apps, out = load(data / "traces"), {}
    for name, published in OPTIMUS.items():
        row = metrics(replay(read_workload(data / f"workloads/workload-{name}.csv"), apps, load_policy("optimus")))
        out[name] = row.mean
        _say(
            f"optimus, workload {name}: {row.mean:.0f} s, in the artifact {published:.0f}: "
            f"{row.mean / published - 1:+.1%}"
        )
        if abs(row.mean / published - 1) > within:
            behind.append(f"optimus, workload {name}: {row.mean:.0f} s is not within {within:.0%} of {published:.0f}")
    return out


def scenarios(data: Path) -> dict[str, Any]:
    """Sensitivity to the scenario, on all four workloads."""
    apps = load(data / "traces")
    out: dict[str, Any] = {}
    several: list[tuple[str, Scenario, dict[str, Any]]] = [
        (label, change(Scenario()), {}) for label, change in VARIANTS
    ]
    for label, rule in GROWTH:
        several += [(label, Scenario(), rule), (f"{label}, no progress", Scenario(report_progress=False), rule)]
    for label, scenario, more in several:
        settings = PolicySettings(restart_seconds=scenario.restart_seconds, **more)
        rows = [
            metrics(
                replay(
                    read_workload(data / f"workloads/workload-{n}.csv"),
                    apps,
                    load_policy("goodput", settings),
                    scenario,
                )
            )
            for n in POLLUX
        ]
        out[label] = {n: row.as_dict() for n, row in zip(POLLUX, rows, strict=True)}
        _say(
            f"{label:21} means "
            + " ".join(f"{row.mean:7.0f}" for row in rows)
            + f"   restarts {np.mean([row.restarts for row in rows]):.2f}"
        )
    return out


def speed(ranges: dict[str, Any], behind: list[str]) -> list[dict[str, Any]]:
    """CPU milliseconds of one call at three sizes, and the growth from size to size.

    Machines differ, so the limits are multiples of a fixed reference task that is timed beside the calls.
    """
    out = []
    _say("\npolicy            jobs  nodes   first ms   p50 ms   p95 ms   limit   growth  references  of ms")
    for name, limits in ranges["speed_p95_references"].items():
        before = 0.0
        plain, _, more = name.partition(", ")
        for jobs, nodes, limit in SIZES:
            row = measure(plain, jobs, nodes, limit, CALLS[jobs], more=more)
            growth = f"{row.p95_ms / before:8.1f}" if before else "       -"
            before = row.p95_ms
            mark = " " if row.p95_ms <= limit else "*"
            _say(
                f"{name:16} {jobs:5} {nodes:6} {row.first_ms:10.1f} {row.p50_ms:8.1f} {row.p95_ms:8.1f}{mark}"
                f"{limit:7.0f} {growth} {row.references:11.2f} {row.reference_ms:6.1f}"
            )
            if row.references > limits[str(jobs)]:
                behind.append(f"{name}, {jobs} jobs: p95 {row.references:.2f} references, above {limits[str(jobs)]}")
            out.append(asdict(row))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _say(f"largest memory {memory:.0f} MiB; * above the limit of the issue")
    if memory > ranges["memory_mib"]:
        behind.append(f"memory {memory:.0f} MiB is above {ranges['memory_mib']}")
    return out


def laws(count: int, behind: list[str]) -> dict[str, Any]:
    """Snapshots checked and laws violated."""
    from tests.policies import laws as judged  # noqa: PLC0415 - tests are there in a checkout alone
    from tests.policies.generators import snapshots  # noqa: PLC0415

    out: dict[str, Any] = {}
    for name in ("fit", "fair", "goodput", "fair+goodput"):
        policy, broken = load_policy(name), []
        for snapshot in snapshots(12345, count):
            plan = policy.optimize(snapshot)
            broken += judged.sound(snapshot, plan)
            broken += judged.nobody_waits_for_nothing(snapshot, plan)
            broken += judged.no_worse_than_keeping(policy, snapshot, plan)
            broken += judged.settles(policy, snapshot, plan)
        out[name] = {"snapshots": count, "broken": len(broken)}
        _say(f"laws 1-4, 6, 7: {name:13} {count} snapshots, {len(broken)} broken")
        behind += [f"{name}: {line}" for line in broken[:5]]
    return out


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
