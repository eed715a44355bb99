"""`python -m benchmarks`: run the measurements, print a table, write out/bench.json.

    --only rendering,serving,...  some of rendering, serving, sharding (which need no cluster), starting, objects,
                                  commands, resizing, admitting, allocating (which share one)
    --rounds 9                    repetitions of the live measurements
    --sizes 100,1000,5000         pods for the allocator's part (the last takes more than ten minutes)

The cluster is that of DIFLOW_TEST_KUBECONFIG, or a new one. The figures are written after each part. Each figure is
printed beside its limit. Machines differ and are shared, so only ratios within the run are checked: the exit code is 1
if one exceeds its limit, or if a part failed.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks import (
    admitting,
    allocating,
    commands,
    live,
    objects,
    rendering,
    resizing,
    serving,
    sharding,
    starting,
)
from benchmarks.parts import Part, Record

OUT = Path(__file__).resolve().parents[1] / "out" / "bench.json"
# On a machine of two processors a cluster disturbs what needs none: that comes first.
ALONE = ("rendering", "serving", "sharding")
LIVE = ("starting", "objects", "commands", "resizing", "admitting", "allocating")
PARTS = (*ALONE, *LIVE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure diflow's speed.")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument(
        "--rounds", type=int, default=9, help="repetitions of the live measurements (default: %(default)s)"
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=",".join(map(str, allocating.SIZES)),
        help="pods for the allocator (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, default=OUT, help="file of the figures (default: %(default)s)")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    parts = parts_of(options.rounds, options.sizes)
    with Record(options.out) as record:
        record.run({name: parts[name] for name in ALONE if name in chosen})
        if on_a_cluster := {name: parts[name] for name in LIVE if name in chosen}:
            with live.one_cluster():
                record.run(on_a_cluster)
    return int(bool(record.failed) or any(figure.is_missed for figure in record.figures if figure.is_ratio))


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def parts_of(rounds: int, sizes: list[int]) -> dict[str, Part]:
    """All parts by their names."""
    return {
        "rendering": rendering.measure,
        "serving": serving.measure,
        "sharding": sharding.measure,
        "starting": partial(starting.measure, rounds=rounds),
        "objects": partial(objects.measure, rounds=rounds),
        "commands": commands.measure,
        "resizing": partial(resizing.measure, rounds=rounds),
        "admitting": admitting.measure,
        "allocating": partial(allocating.measure, sizes=sizes),
    }


if __name__ == "__main__":
    sys.exit(main())
