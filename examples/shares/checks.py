"""What `diflow queue` and `diflow explain` print, held against the pods that run at that moment.

A check returns a sentence for each thing that is not so. It reads what people read, and knows nothing of the policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shares.cast import CAPPED, GPU, GPUS, NAMESPACE, NODES, PARTS, USERS, Moment, Part, held, present

_HEAD = re.compile(
    r"(\S+) (?:has (\d+) of|waits for) ([\d-]+) replicas?(?: \(\d+ run\))?; priority \S+, queue (\S+), (.*preemptible)"
)
_NOW = re.compile(r"now, policy (\S+) would decide: (.*)")
_DECIDED = re.compile(r"decided \S+ ago: (.*)")
_GETS = re.compile(r"it gets (\d+) of the (\d+) replicas")
_LEFT = re.compile(r"(\d+) (?:replica is|replicas are|is|are) left to it")
_FIT = re.compile(r"(\d+) fits? now")
_CAPPED = re.compile(r"queue '([\w-]+)' is capped at (\d+)\D* and has (\d+)\D* of that left")
_NEEDS = re.compile(r"the gang needs (\d+)")
_HOLDS = re.compile(r"queue '([\w-]+)' holds (\d+)\D* of the (\d+)\D* that it deserves")
_AT_REST = {True: "keeps", False: "waits"}
_WAITS = frozenset({"waits", "can", "cannot"})


def queues_told(data: Mapping[str, Any], moment: Moment, running: Mapping[str, int]) -> list[str]:
    """Of `diflow queue -o json`: what each user's queue deserves and holds, how many of its jobs run, and who waits."""
    rows = {row["name"]: row for row in data["queues"]}
    now, parts = held(running), present(moment)
    out = []
    for user in USERS:
        row = rows.get(user)
        if row is None:
            out.append(f"queue does not show {user}")
            continue
        run = sum(running.get(part.name, 0) > 0 for part in parts if part.user == user)
        wait = sum(part.user == user for part in parts) - run
        said = (row["deserved"].get(GPU, 0), row["allocated"].get(GPU, 0), row["running"], row["waiting"])
        true = (moment.deserved[user], now[user], run, wait)
        for what, one, other in zip(("deserves", "holds", "jobs run", "jobs wait"), said, true, strict=True):
            if abs(one - other) > 1e-6:
                out.append(f"queue says of {user}: {what} {one:g}, and it is {other:g}")
    said_to_wait = sorted(row["name"] for row in data["waiting"])
    waits = sorted(part.name for part in parts if not running.get(part.name, 0))
    if said_to_wait != waits:
        out.append(f"queue says that {_listed(said_to_wait)} wait, and it is {_listed(waits)}")
    return out


def job_explained(text: str, part: Part, moment: Moment, running: Mapping[str, int]) -> list[str]:
    """Of `diflow explain JOB` on a cluster at rest: its numbers, its queue, and what it waits for."""
    return [f"explain {part.name}: {wrong}" for wrong in _wrong(text.splitlines(), part, moment, running)]


def taken_for(messages: Iterable[str], moment: Moment) -> str:
    """The newcomer of this moment whom one of these messages names, or ""."""
    found = (part.name for message in messages for part in moment.comes if f"{NAMESPACE}/{part.name}'" in message)
    return next(found, "")


def reason(text: str, *, waits: bool) -> str:
    """The line of an explanation that says why: of the present for a job that waits, else of the last decision."""
    pattern = _NOW if waits else _DECIDED
    found = (match for line in text.splitlines() if (match := pattern.fullmatch(line)))
    return next((match[match.re.groups] for match in found), "")


def _wrong(lines: Sequence[str], part: Part, moment: Moment, running: Mapping[str, int]) -> Iterator[str]:
    here = running.get(part.name, 0)
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        yield f"its first line cannot be read: {lines[:1]}"
        return
    asked = str(part.high) if part.low == part.high else f"{part.low}-{part.high}"
    said = (head[1], int(head[2] or 0), head[3], head[4], head[5])
    true = (f"{NAMESPACE}/{part.name}", here, asked, part.user, "preemptible")
    if said != true:
        yield f"it says {said}, and it is {true}"
    decided = next((match for line in lines if (match := _DECIDED.fullmatch(line))), None)
    if decided is None or _has_pods(decided[1]) != (here > 0):
        yield f"the last decision is {decided and decided[1]!r}, and {here} of its replicas run"
    now = next((match for line in lines if (match := _NOW.fullmatch(line))), None)
    if now is None:
        yield "it does not say what would be decided now"
        return
    if (now[1], _verb(now[2])) != ("fair", _AT_REST[here > 0]):
        yield f"policy {now[1]} would decide {now[2]!r} now, and the cluster is at rest with {here} of its replicas"
    # Why a job waits is written down anew at most once a minute, and what was decided is told with its age.
    for line in (now[2], decided[1] if decided and here else ""):
        yield from _wrong_numbers(line, part, moment, running)
    if not here:
        yield from _wrong_cause(now[2], part, moment, running)


def _verb(words: str) -> str:
    """What the job does by a decision."""
    found = re.match(r"it (\w+)", words)
    return "waits" if found and found[1] in _WAITS else found[1] if found else ""


def _has_pods(words: str) -> bool:
    """Whether the job has pods after a decision."""
    left = _LEFT.search(words)
    return int(left[1]) > 0 if left else _verb(words) not in ("waits", "")


def _wrong_numbers(line: str, part: Part, moment: Moment, running: Mapping[str, int]) -> Iterator[str]:
    here, users = running.get(part.name, 0), held(running)
    free = len(NODES) * GPUS - sum(users.values())
    if (gets := _GETS.search(line)) and (int(gets[1]), int(gets[2])) != (here, part.high):
        yield f"{gets[0]!r}, and it has {here} of {part.high}"
    if (left := _LEFT.search(line)) and int(left[1]) != here:
        yield f"{left[0]!r}, and it has {here}"
    if (fit := _FIT.search(line)) and int(fit[1]) > free:
        yield f"{fit[0]!r}, and {free} GPUs are free"
    if (needs := _NEEDS.search(line)) and int(needs[1]) != part.low:
        yield f"{needs[0]!r}, and it is {part.low}"
    if (holds := _HOLDS.search(line)) and holds[1] in USERS:
        true = (users[holds[1]], moment.deserved[holds[1]])
        if (int(holds[2]), int(holds[3])) != true:
            yield f"{holds[0]!r}, and it is {true[0]} of {true[1]}"
    if (capped := _CAPPED.search(line)) and capped[1] in USERS:
        cap = CAPPED.get(capped[1], 0)
        if (int(capped[2]), int(capped[3])) != (cap, cap - users[capped[1]]):
            yield f"{capped[0]!r}, and {capped[1]} holds {users[capped[1]]} with a cap of {cap}"


def _wrong_cause(line: str, part: Part, moment: Moment, running: Mapping[str, int]) -> Iterator[str]:
    """What it waits for: the cap of its queue where that is too small, else what the queue deserves."""
    user, has = part.user, held(running)[part.user]
    is_capped = has + part.low > CAPPED.get(user, has + part.low)
    is_served = has >= moment.deserved[user]
    capped, holds = _CAPPED.search(line), _HOLDS.search(line)
    if is_capped and not (capped and capped[1] == user):
        yield f"the cap of {user} is what it waits for, and is not named: {line}"
    if not is_capped and capped:
        yield f"no cap is in its way: {line}"
    if not is_capped and is_served and not (holds and holds[1] == user):
        yield f"{user} has what it deserves, and that is not named: {line}"
    if any(f"{NAMESPACE}/{name}'" in line and not here for name, here in running.items() if name in PARTS):
        yield f"nobody who waits is in its way: {line}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nobody"
