"""What was judged before, by the very same code: 400,000 snapshots take ten minutes of two processors.

A verdict depends on nothing but the code that is judged and the code that judges: seeds are fixed, clocks are not read.
So a part that held is not judged again until a line of one of them changes, Python, numpy or scipy do, or
DIFLOW_LAW_CACHE=off. What is known lies outside the checkout, one file for each state of the code, and only of parts
that held. Some parts are judged in every run all the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from cluster.paths import cache_root
from tests.policies.judging import Part

ROOT = Path(__file__).resolve().parents[2]
FRESH_EACH = 8
"""Of all parts, each eighth is judged again although it is known."""
# The modules are asked for in a process that has judged a little: what is imported late counts, too.
_LOADED = """
import sys
from pathlib import Path
from tests.policies.judging import judge_part, parts

for part in parts(sys.argv[1], 256, dear_each=2)[:4]:
    judge_part(part)
root = Path.cwd()
files = {Path(m.__file__).resolve() for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
print("\\n".join(sorted(str(f.relative_to(root)) for f in files if f.is_relative_to(root) and ".venv" not in f.parts)))
"""


def due(work: Sequence[Part], known: Mapping[str, int], *, every: bool, code: str) -> list[Part]:
    """The parts to judge now: every part that is not known, or a sample of one part of each kind.

    The sample begins at a part that `code` determines and prefers parts that are not known: the runs of one state of
    the code judge all parts in turn, and different states of the code begin with different parts.
    """
    if every:
        return [part for i, part in enumerate(work) if i % FRESH_EACH == 0 or str(part) not in known]
    start = int(code, 16) % len(work)
    rotated = [*work[start:], *work[:start]]
    chosen: dict[str, Part] = {}
    for part in [part for part in rotated if str(part) not in known] + rotated:
        chosen.setdefault(part.kind, part)
    return [chosen[kind] for kind in sorted(chosen)]


def known(policy: str) -> dict[str, int]:
    """Part → snapshots judged, of the parts of this policy that held under the code as it is now."""
    if os.environ.get("DIFLOW_LAW_CACHE") == "off":
        return {}
    try:
        found = json.loads(_file(policy).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(part): int(count) for part, count in found.items()} if isinstance(found, dict) else {}


def keep(policy: str, held: Mapping[str, int]) -> None:
    """Add parts that held. Of two processes that do so at once one may be forgotten, and is judged again."""
    if os.environ.get("DIFLOW_LAW_CACHE") == "off":
        return
    file = _file(policy)
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps({**known(policy), **held}, indent=1, sort_keys=True), encoding="utf-8")
    made.replace(file)


def _file(policy: str) -> Path:
    return cache_root() / "laws" / f"{policy}-{code_of(policy)}.json"


@cache
def code_of(policy: str) -> str:
    """A digest of all code that a verdict on this policy depends on."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, policy],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    digest = hashlib.sha256(f"{sys.version} {platform.machine()} {np.__version__} {scipy.__version__}".encode())
    for name in done.stdout.split("\n"):
        if name:
            digest.update(f"\0{name}\0".encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()[:24]
