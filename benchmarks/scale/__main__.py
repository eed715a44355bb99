"""`python -m benchmarks.scale [PART ...]`: run the parts (all, if none is named), print a table, write out/scale.json.

    waiting    10,000 gangs that do not fit on 200 full nodes: when all are planned, memory, cycles, commands, the page
    running    1,000 jobs and 5,000 pods: a change, a killed API server, a killed leader
    gang       one job of 1,000 replicas, beside a Workflow by hand
    lookups    host names behind the Service of a namespace with up to 5,000 pods
    soak       jobs of one pod come and go (`--soak-minutes 60 --soak-jobs 5000`: the long form)

All parts together take less than 40 minutes on two processors, and end by themselves. They need a cluster with fake
nodes: that of DIFLOW_TEST_KUBECONFIG, or a new one. The exit code is 1 if a figure is outside its range
(ranges.json) or above its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import live
from benchmarks.figures import Figure
from benchmarks.parts import Part, Record
from benchmarks.scale import gang, lookups, running, soak, waiting

OUT = Path(__file__).resolve().parents[2] / "out" / "scale.json"
RANGES = Path(__file__).with_name("ranges.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Measure at a large team's scale.")
    parser.add_argument("part", nargs="*", metavar="PART", help="waiting, running, gang, lookups, soak (default: all)")
    parser.add_argument("--jobs", type=int, default=10_000, help="waiting gangs (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=5000, help="running pods, of five a job (default: %(default)s)")
    parser.add_argument("--falls", type=int, default=2, help="leaders that are killed (default: %(default)s)")
    parser.add_argument("--no-fence", action="store_true", help="without the API server's policy (docs/decisions/0015)")
    parser.add_argument("--replicas", type=int, default=1000, help="of the one large job (default: %(default)s)")
    parser.add_argument("--soak-minutes", type=float, default=5.0, help="at most so long (default: %(default)s)")
    parser.add_argument("--soak-jobs", type=int, default=400, help="at most so many (default: %(default)s)")
    options = parser.parse_args()
    parts: dict[str, Part] = {
        "waiting": partial(waiting.measure, jobs=options.jobs),
        "running": partial(running.measure, pods=options.pods, rounds=options.falls, is_fenced=not options.no_fence),
        "gang": partial(gang.measure, replicas=options.replicas, fewer=options.replicas * 9 // 10),
        "lookups": lookups.measure,
        "soak": partial(soak.measure, jobs=options.soak_jobs, minutes=options.soak_minutes),
    }
    if unknown := set(options.part) - parts.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(parts)}")
    chosen = options.part or list(parts)
    with Record(OUT) as record, live.one_cluster():
        record.run({name: parts[name] for name in chosen})
    outside = _outside(record.figures)
    for line in outside:
        print(line)
    return int(bool(record.failed or outside) or any(figure.is_missed for figure in record.figures))


def _outside(figures: Sequence[Figure]) -> list[str]:
    """Figures outside the range that is checked in. Only the sizes of the issue's table have ranges."""
    ranges = json.loads(RANGES.read_text(encoding="utf-8"))["upper"]
    return [
        f"{figure.part}, {figure.name}: {figure.value:.3g} {figure.unit} is above {limit}, the upper end of its range"
        for figure in figures
        if (limit := ranges.get(f"{figure.part}, {figure.name}")) is not None and figure.value > limit
    ]


if __name__ == "__main__":
    sys.exit(main())
