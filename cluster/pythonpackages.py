"""Which Python packages the diflow image holds: those of the project, its allocator, server and examples, as locked.

Run by the Dockerfile too, hence a file that imports nothing of its neighbours:
`python3 pythonpackages.py pyproject.toml requirements.lock WANTED PINNED` writes the two files that pip reads.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

# A pin and its marker, as in `numpy==2.4.0 ; python_version < '3.12' \\`.
_PIN = re.compile(r"(([A-Za-z0-9][^\s;=\[]*)[^\s;=]*==[^\s;\\]+)\s*(;[^\\]*)?")
# Who wants a package is said in comments below it. This is the project; `diflow (pyproject.toml:dev)` are its tools.
_PROJECT = "diflow (pyproject.toml)"
_EXTRAS = ("allocator", "server", "examples")


def wanted(project: dict[str, Any]) -> list[str]:
    """The requirements of the project and of those of its extras that run in pods."""
    table = project["project"]
    extras = table.get("optional-dependencies", {})
    # Two extras may ask for the same: pip takes it once.
    return list(
        dict.fromkeys([*table.get("dependencies", []), *(n for extra in _EXTRAS for n in extras.get(extra, []))])
    )


def pinned(lock: str) -> list[str]:
    """A constraint for each package that the project needs by a lock file (in pip's form), without hashes.

    The tools for developers are left out: a new version of one is no reason to make the image anew.
    """
    pins: list[tuple[str, str]] = []
    wanted_by: dict[str, set[str]] = {}
    for line in lock.splitlines():
        found = _PIN.match(line)
        if found:
            pins.append((found[2], f"{found[1]} {(found[3] or '').strip()}".strip()))
        elif pins and line.startswith("    #"):
            wanted_by.setdefault(pins[-1][0], set()).add(line.lstrip(" #").removeprefix("via ").strip())
    needed = {_PROJECT}
    while more := {name for name, by in wanted_by.items() if by & needed} - needed:
        needed |= more
    return [pin for name, pin in pins if name in needed]


def main(arguments: list[str]) -> None:
    """Writes both files."""
    project = tomllib.loads(Path(arguments[0]).read_text())
    Path(arguments[2]).write_text("\n".join(wanted(project)) + "\n")
    Path(arguments[3]).write_text("\n".join(pinned(Path(arguments[1]).read_text())) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
