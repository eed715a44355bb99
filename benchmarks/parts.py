"""Runs the parts of a benchmark one after the other, so that what was measured is kept whatever happens afterwards."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.figures import Figure, figures_table

Part = Callable[[], list[Figure]]


class Record:
    """The figures of a run. `out` always has those of all parts so far, as JSON; the end prints them all."""

    def __init__(self, out: Path) -> None:
        self.figures: list[Figure] = []
        self.failed: list[str] = []
        self._out = out
        self._began = time.monotonic()
        self._write()  # those of an earlier run are not taken for this one's

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        print(figures_table(self.figures))
        print(f"\nwritten to {self._out}")
        for name in self.failed:
            print(f"{name}: failed, see above")

    def run(self, parts: Mapping[str, Part]) -> None:
        """Measure these parts. Those after one that failed are measured still."""
        for name, measure in parts.items():
            try:
                self.figures += measure()
                verdict = "measured"
            except Exception:  # whatever it is, it is this part's
                traceback.print_exc()
                self.failed.append(name)
                verdict = "failed"
            self._write()
            print(f"[{(time.monotonic() - self._began) / 60:5.1f} min] {name}: {verdict}", flush=True)

    def _write(self) -> None:
        self._out.parent.mkdir(parents=True, exist_ok=True)
        staged = self._out.with_suffix(".part")
        staged.write_text(json.dumps([figure.to_dict() for figure in self.figures], indent=2) + "\n", encoding="utf-8")
        staged.replace(self._out)
