"""`python -m benchmarks`: run the measurements, print a table, write out/bench.json.

    --only starting,objects,rendering,...  some of starting, objects, rendering, commands, serving, sharding, resizing,
                                         admitting, allocating
    --rounds 7                           repetitions of the live measurements
    --sizes 100,1000,5000                pods for the allocator's part (the last takes more than ten minutes)

Each figure is printed beside its limit. Machines differ and are shared, so only ratios within the run are checked: the
exit code is 1 if one exceeds its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import admitting, allocating, commands, objects, rendering, resizing, serving, sharding, starting
from benchmarks.figures import Figure, figures_table

OUT = Path(__file__).resolve().parents[1] / "out" / "bench.json"
PARTS = ("starting", "objects", "rendering", "commands", "serving", "sharding", "resizing", "admitting", "allocating")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure diflow's speed.")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of the live measurement (default: 7)")
    parser.add_argument(
        "--sizes", default=",".join(map(str, allocating.SIZES)), help="pods for the allocator (default: %(default)s)"
    )
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    figures: list[Figure] = []
    if "rendering" in chosen:
        figures += rendering.measure()
    if "starting" in chosen:
        figures += starting.measure(rounds=options.rounds)
    if "objects" in chosen:
        figures += objects.measure(rounds=options.rounds)
    if "commands" in chosen:
        figures += commands.measure()
    if "serving" in chosen:
        figures += serving.measure()
    if "sharding" in chosen:
        figures += sharding.measure()
    if "resizing" in chosen:
        figures += resizing.measure(rounds=options.rounds)
    if "admitting" in chosen:
        figures += admitting.measure()
    if "allocating" in chosen:
        figures += allocating.measure(sizes=[int(size) for size in options.sizes.split(",")])
    print(figures_table(figures))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps([figure.to_dict() for figure in figures], indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {OUT}")
    return int(any(figure.is_missed for figure in figures if figure.is_ratio))


if __name__ == "__main__":
    sys.exit(main())
