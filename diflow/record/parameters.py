"""Reads the state of a job from its Workflow, with one rule for all readers.

Invalid text has one of three consequences:

- Text that only diflow writes (`rounds`, `current`, `granted`, `released`, `incarnations`, the DIJob): the state of the
  job is unknown, so the whole job is unreadable. `problem` is one sentence for its owner; the allocator takes no
  decision for the job, and its pods keep running.
- Text that users and programs write (`replicas`, `diflow/bounds`, `profilings`): it is ignored, and `complaints` has a
  sentence for each.
- Annotations that diflow writes for its own use (`diflow/allocation`, `diflow/decision`, counts of earlier Workflows):
  they count as missing, as they can be derived again or are history.

A replica that is granted and released at the same time does not run: `running` is the number granted less the released
tail, and every reader shows that number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_REPLICAS, MOST_WORKFLOW_BYTES
from diflow.common.memo import MIB, remembered
from diflow.dijob import stored
from diflow.dijob.memory import MOST_MIB
from diflow.record import untrusted
from diflow.record.live import Live
from diflow.record.patches import NOT_ADMITTED, live, merged

Object = Mapping[str, Any]
Pairs = tuple[tuple[str, str], ...]
_Fields = dict[str, Any]

ADMITTED: Final = '{"until":0}'
"""The parameter `places` when it holds for no pod any more."""
LONGEST_PROFILINGS: Final = 65_536
"""Characters of a job's reports: twice what the server writes."""
MOST_ROUNDS: Final = 10_000
"""In one Workflow. A job continues in another one long before that (docs/decisions/0006)."""
_MOST_RELEASED: Final = 100_000
# Of opening brackets: `granted` has a mapping for each round; reports have one for each rank, and a list for each row.
_MOST_OF_LIVE: Final = MOST_ROUNDS + untrusted.FEW
_MOST_OF_REPORTS: Final = 8_000
_LIVE: Final = (keys.PARAM_ROUNDS, keys.PARAM_CURRENT, keys.PARAM_GRANTED, keys.PARAM_RELEASED)
_LONGEST_WHY: Final = 2000
_INCARNATION: Final = re.compile(r"(\.[1-9][0-9]{0,8})?", re.ASCII)
_REPLICA: Final = re.compile(r"([1-9][0-9]{0,8})/([a-z0-9-]{1,63})/([0-9]{1,6})", re.ASCII)
_RELEASED: Final = re.compile(r"[1-9][0-9]{0,8}/([0-9]{1,9}|[a-z0-9-]{1,63}/[0-9]{1,6}(\.[1-9][0-9]{0,8})?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Decision:
    """The allocator's last decision on a job: an action (such as `wait` or `stop`), why, and when (RFC 3339). All are
    "" while nothing is decided."""

    action: str = ""
    why: str = ""
    time: str = ""

    def __bool__(self) -> bool:
        """Something is decided."""
        return bool(self.why)


_UNDECIDED: Final = Decision()


class TooLargeParametersError(InvalidError):
    """The parameters are larger than those of any Workflow that diflow makes."""


def check_bytes(given: Pairs) -> None:
    """Raises TooLargeParametersError."""
    size = sum(len(name) + len(value) for name, value in given)
    if size > MOST_WORKFLOW_BYTES:
        raise TooLargeParametersError(
            f"its parameters have {size:,} characters, and those of a job at most {MOST_WORKFLOW_BYTES:,}; "
            "remove what diflow did not write, or delete the job"
        )


def is_never_admitted(status: Object, given: Pairs) -> bool:
    """Whether the allocator never admitted the job of this status and these parameters, and Argo has made nothing."""
    made = any(status.get(name) for name in ("nodes", "compressedNodes", "offloadNodeStatusVersion"))
    return not made and dict(given).get(keys.PARAM_PLACES) == NOT_ADMITTED


def without_places(workflow: Object) -> list[dict[str, str]] | None:
    """All parameters of a Workflow, with the places of its admission invalid, so that new pods have gates: others may
    have the places by now. None if they are invalid already."""
    given = parameters(workflow)
    holds = dict(given).get(keys.PARAM_PLACES, ADMITTED) not in (NOT_ADMITTED, ADMITTED)
    return merged(given, live(places=ADMITTED)) if holds else None


def parameters(workflow: Object) -> Pairs:
    """All parameters of a Workflow in their order, as (name, value)."""
    given = untrusted.sub(workflow, "spec", "arguments").get("parameters")
    return tuple((str(p.get("name", "")), _value(p.get("value", ""))) for p in untrusted.mappings(given))


def report(workflow: Object) -> tuple[str | None, int | None]:
    """(what the job reports as its Workflow has it, the place of that parameter among all): None if the server cannot
    have written it, and if there is none."""
    given = untrusted.mappings(untrusted.sub(workflow, "spec", "arguments").get("parameters"))
    for at, item in enumerate(given):
        if item.get("name") == keys.PARAM_PROFILINGS:
            value = item.get("value")
            return value if isinstance(value, str) and len(value) <= LONGEST_PROFILINGS else None, at
    return None, None


def replicas_text(given: Pairs) -> str:
    """The replicas that the user requests, as the parameter's text; "" if there is none."""
    return dict(given).get(keys.PARAM_REPLICAS, "")


def manifest(workflow: Object) -> dict[str, Any]:
    """The DIJob as submitted, without its unreadable parts: its owner may have edited it since."""
    found = untrusted.mapping(untrusted.sub(workflow, "metadata", "annotations").get(keys.DIJOB))
    parts = {"metadata": dict, "spec": dict, "apiVersion": str, "kind": str}
    return {key: value for key, value in found.items() if isinstance(value, parts.get(key, object))}


def _value(value: Any) -> str:
    """Argo accepts numbers and booleans as text, too."""
    return value if isinstance(value, str) else "" if value is None else untrusted.string(str(value))


def live_of(given: Pairs, tasks: tuple[str, ...], *, is_continued: bool) -> Live:
    """The parameters that only the allocator writes, of a job with these tasks. `is_continued`: the job goes on in
    another Workflow. Raises InvalidError if they were edited."""
    values = dict(given)
    names = (*_LIVE, keys.PARAM_INCARNATIONS, keys.PARAM_MEMORY)
    return _read_live((tuple((name, values[name]) for name in names if name in values), tasks, is_continued))


@remembered(most_bytes=4 * MIB, size=lambda key: sum(200 + len(value) for _, value in key[0]) + 100 * len(key[1]))
def _read_live(key: tuple[Pairs, tuple[str, ...], bool]) -> Live:
    """As `_live`, from (these parameters, the names of the tasks, whether the job goes on in another Workflow).

    Most jobs have the same few values: those that wait, and those that run as they were submitted.
    """
    given, names, is_continued = key
    values, tasks = dict(given), set(names)
    rounds = _json(values, keys.PARAM_ROUNDS, list)
    current = values.get(keys.PARAM_CURRENT, "")
    granted = _json(values, keys.PARAM_GRANTED, dict)
    released = _json(values, keys.PARAM_RELEASED, list)
    incarnations = _json(values, keys.PARAM_INCARNATIONS, dict, missing="{}")
    if (
        not rounds
        or len(rounds) > MOST_ROUNDS
        or not all(untrusted.is_round(name) for name in rounds)
        or len(set(rounds)) < len(rounds)
    ):
        raise _edited(keys.PARAM_ROUNDS, 'a list of numbers such as ["1","2"]')
    if not current and is_continued:
        current = rounds[-1]  # the job has left this Workflow
    if current not in rounds:
        raise _edited(keys.PARAM_CURRENT, f"one of {', '.join(rounds[-5:])}")
    for counts in granted.values():
        _check_size(counts.values() if isinstance(counts, dict) else (), what=f"the parameter {keys.PARAM_GRANTED}")
    if not all(untrusted.is_round(name) and _is_grant(counts, tasks) for name, counts in granted.items()):
        raise _edited(keys.PARAM_GRANTED, 'replicas of each task by round, such as {"1":{"learner":1}}')
    if granted.get(current, {}).keys() != tasks:
        raise _edited(keys.PARAM_GRANTED, f"replicas of each task of round {current}")
    if len(released) > _MOST_RELEASED or not all(isinstance(r, str) and _RELEASED.fullmatch(r) for r in released):
        raise _edited(keys.PARAM_RELEASED, 'a list of texts such as ["1/learner/2"]')
    if len(incarnations) > _MOST_RELEASED or not all(
        _is_incarnation(key, suffix, tasks) for key, suffix in incarnations.items()
    ):
        raise _edited(keys.PARAM_INCARNATIONS, 'a mapping from members to their suffixes, such as {"1/learner/2":".1"}')
    memory = _json(values, keys.PARAM_MEMORY, dict, missing="{}")
    if not all(task in tasks and untrusted.is_count(mib, most=MOST_MIB) for task, mib in memory.items()):
        raise _edited(keys.PARAM_MEMORY, 'the MiB of tasks of the job, such as {"learner":2048}')
    return Live(tuple(rounds), current, granted, frozenset(released), incarnations, memory)


def submitted_replicas(head: Object) -> dict[str, int]:
    """The replicas by task as submitted, from a Workflow's metadata; none if its DIJob is unreadable."""
    dijob = untrusted.sub(head, "metadata", "annotations").get(keys.DIJOB)
    try:
        return {task.name: task.replicas for task in stored.read_job(dijob).spec.tasks}
    except InvalidError:
        return {}


def _check_size(numbers: Iterable[Any], *, what: str) -> None:
    """Raises InvalidError if these are more replicas than a job may have. Other values than numbers are ignored."""
    total = sum(n for n in numbers if isinstance(n, int) and n > 0)
    if total > MOST_REPLICAS:
        shown = f"{total:,}" if total < 10**9 else "more than 1,000,000,000"
        raise InvalidError(
            f"{what} is not what diflow wrote: it says {shown} replicas, and a job may have {MOST_REPLICAS:,}; "
            "put it back, or delete the job"
        )


def _is_grant(counts: Any, tasks: set[str]) -> bool:
    return (
        isinstance(counts, dict)
        and all(task in tasks and _is_count(n) for task, n in counts.items())
        and sum(counts.values()) <= MOST_REPLICAS
    )


def _is_incarnation(key: str, suffix: Any, tasks: set[str]) -> bool:
    found = _REPLICA.fullmatch(key)
    return found is not None and found[2] in tasks and isinstance(suffix, str) and bool(_INCARNATION.fullmatch(suffix))


def _json(values: Mapping[str, str], name: str, kind: type, *, missing: str = "") -> Any:
    try:
        value = untrusted.load(values.get(name, missing), most_brackets=_MOST_OF_LIVE)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise _edited(name, "JSON as diflow writes it")
    return value


def _edited(name: str, wanted: str) -> InvalidError:
    return InvalidError(
        f"the parameter {name} is not what diflow wrote: it must be {wanted}; put it back, or delete the job"
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What users and programs write after the submission, without what is invalid: `complaints` says what that is."""

    desired: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    profilings: str = ""
    complaints: tuple[str, ...] = ()


def asked_of(given: Pairs, bounds: Any, tasks: tuple[str, ...]) -> Asked:
    """What is asked for in these parameters and in the annotation `diflow/bounds`, of a job with these tasks."""
    complaints: list[str] = []
    values = dict(reversed(given))  # the first of two with one name counts
    wanted = _wanted((values.get(keys.PARAM_REPLICAS, ""), tasks))
    if wanted is None:
        complaints.append(f"the parameter {keys.PARAM_REPLICAS} is not a number of at least 1 for tasks of this job")
    ranges = _bounds(bounds, tasks)
    if ranges is None:
        complaints.append(f"the annotation {keys.BOUNDS} is not a minimum and a maximum for tasks of this job")
    profilings = values.get(keys.PARAM_PROFILINGS, "")
    if not _is_report(profilings):
        complaints.append(f"the parameter {keys.PARAM_PROFILINGS} is not a valid report: it must be a JSON object")
        profilings = ""
    return Asked(wanted or {}, ranges or {}, profilings, tuple(complaints))


@remembered(most_bytes=4 * MIB, size=lambda key: 300 + len(key[0]) + 100 * len(key[1]))
def _wanted(key: tuple[str, tuple[str, ...]]) -> dict[str, int] | None:
    """The replicas in (the parameter, the names of the tasks), one object for all equal ones."""
    given, tasks = key
    try:
        value = untrusted.load(given, most_brackets=untrusted.FEW) if given else {}
    except ValueError:
        return None
    return value if isinstance(value, dict) and (not value or _is_grant(value, set(tasks))) else None


def _bounds(given: Any, tasks: tuple[str, ...]) -> dict[str, tuple[int, int]] | None:
    if not given:
        return {}
    try:
        value = untrusted.load(given, most_brackets=untrusted.FEW)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    out: dict[str, tuple[int, int]] = {}
    for task, pair in value.items():
        low, high = (untrusted.sub(value, task).get(name) for name in ("min", "max"))
        if task not in tasks or not isinstance(pair, dict) or not _is_count(low) or not _is_count(high) or low > high:
            return None
        out[task] = (low, high)
    return out


def _is_report(given: str) -> bool:
    return not given or (len(given) <= LONGEST_PROFILINGS and _is_object(given))


@remembered(most_bytes=32 * MIB)
def _is_object(given: str) -> bool:
    try:
        return isinstance(untrusted.load(given, most_brackets=_MOST_OF_REPORTS), dict)
    except ValueError:
        return False


def _is_count(value: Any) -> TypeGuard[int]:
    return untrusted.is_count(value, most=MOST_REPLICAS)


def decision_of(given: Any) -> Decision:
    """The decision in the annotation; an empty one if there is none, or if it is not valid."""
    said = untrusted.mapping(given, most_brackets=untrusted.FEW)
    why = untrusted.string(said.get("why"), most=_LONGEST_WHY)
    if not why:
        return _UNDECIDED
    return Decision(untrusted.string(said.get("action"), most=40), why, untrusted.time(said.get("time")))


def past_phases(history_before: Object) -> Iterator[tuple[str, str, str]]:
    """(phase, when it last began, when it last ended) for the phases of the job in its earlier Workflows."""
    phases = history_before.get("phases")
    for item in phases[:20] if isinstance(phases, list) else []:
        if (
            isinstance(item, list)
            and len(item) == 3
            and isinstance(item[0], str)
            and (began := untrusted.time(item[1]))
        ):
            yield item[0], began, untrusted.time(item[2]) or began
