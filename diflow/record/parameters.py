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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Final

from msgspec import Meta, Raw, Struct

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.jsontext import NotOfTypeError, lenient, parsed, reader
from diflow.common.limits import MOST_REPLICAS, MOST_WORKFLOW_BYTES
from diflow.common.memo import MIB, remembered
from diflow.dijob import stored
from diflow.dijob.memory import MOST_MIB
from diflow.record import untrusted
from diflow.record.live import Live
from diflow.record.patches import NOT_ADMITTED, live, merged
from diflow.record.types import Count, Moment, Round

Object = Mapping[str, Any]
Pairs = tuple[tuple[str, str], ...]

ADMITTED: Final = '{"until":0}'
"""The parameter `places` when it holds for no pod any more."""
LONGEST_PROFILINGS: Final = 65_536
"""Characters of a job's reports: twice what the server writes."""
MOST_ROUNDS: Final = 10_000
"""In one Workflow. A job continues in another one long before that (docs/decisions/0006)."""
_MOST_RELEASED: Final = 100_000
_LONGEST_WHY: Final = 2000
_MOST_PHASES: Final = 20
_LONGEST_HISTORY: Final = 16_384


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

    @property
    def change(self) -> Decision:
        """The decision; an empty one if it was to keep what there was."""
        return self if self.action != "keep" else _UNDECIDED


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


def places_until(given: Pairs, uid: str) -> float:
    """Until when the parameter `places` holds, in seconds since 1970; 0 if it does not hold at all, as in a copy of the
    Workflow for which it was written (`argo resubmit`). Up to version 0.2 it has no uid, and holds in copies too."""
    places = next((value for name, value in given if name == keys.PARAM_PLACES), "")
    if places in ("", NOT_ADMITTED, ADMITTED):
        return 0.0
    found = parsed(_read_places, places, {})
    until = found.get("until")
    return until if isinstance(until, float) and found.get("uid", uid) == uid else 0.0


_read_places: Final = reader(dict[str, Moment | str], most_characters=MOST_WORKFLOW_BYTES)


def without_places(workflow: Object) -> list[dict[str, str]] | None:
    """All parameters of a Workflow, with the places of its admission invalid, so that new pods have gates: others may
    have the places by now. None if they are invalid already."""
    given = parameters(workflow)
    holds = dict(given).get(keys.PARAM_PLACES, ADMITTED) not in (NOT_ADMITTED, ADMITTED)
    return merged(given, live(places=ADMITTED)) if holds else None


def parameters(workflow: Object) -> Pairs:
    """All parameters of a Workflow in their order, as (name, value)."""
    given = untrusted.sub(workflow, "spec", "arguments").get("parameters")
    return _alike(tuple((str(p.get("name", "")), _value(p.get("value", ""))) for p in untrusted.mappings(given)))


@remembered(most_bytes=4 * MIB, size=lambda pairs: sum(200 + len(name) + len(value) for name, value in pairs))
def _alike(pairs: Pairs) -> Pairs:
    """One shared object for equal parameters, as most jobs that wait have."""
    return pairs


def report(workflow: Object, given: Pairs) -> tuple[str | None, int | None]:
    """(what the job reports as its Workflow has it, the place of that parameter among all, `given`): None if the server
    cannot have written it, and if there is none."""
    at = next((at for at, (name, _) in enumerate(given) if name == keys.PARAM_PROFILINGS), None)
    if at is None:
        return None, None
    item = next(islice(untrusted.mappings(untrusted.sub(workflow, "spec", "arguments").get("parameters")), at, None))
    value = item.get("value")
    return value if isinstance(value, str) and len(value) <= LONGEST_PROFILINGS else None, at


def replicas_text(given: Pairs) -> str:
    """The replicas that the user requests, as the parameter's text; "" if there is none."""
    return dict(given).get(keys.PARAM_REPLICAS, "")


def wishes(given: Pairs) -> Pairs:
    """Of these parameters the one with the replicas that the user requests."""
    return tuple(pair for pair in given if pair[0] == keys.PARAM_REPLICAS)


def stored_text(workflow: Object) -> Any:
    """The annotation with the DIJob as submitted, as it is; None without one."""
    return untrusted.sub(workflow, "metadata", "annotations").get(keys.DIJOB)


def manifest(workflow: Object) -> dict[str, Any]:
    """The DIJob as submitted, without its unreadable parts: its owner may have edited it since."""
    found = parsed(_read_object, stored_text(workflow), {})
    parts = {"metadata": dict, "spec": dict, "apiVersion": str, "kind": str}
    return {key: value for key, value in found.items() if isinstance(value, parts.get(key, object))}


_read_object: Final = reader(dict[str, Any])


def _value(value: Any) -> str:
    """Argo accepts numbers and booleans as text, too."""
    return value if isinstance(value, str) else "" if value is None else untrusted.string(str(value))


def live_of(given: Pairs, tasks: tuple[str, ...], *, is_continued: bool) -> Live:
    """The parameters that only the allocator writes, of a job with these tasks. `is_continued`: the job goes on in
    another Workflow. Raises InvalidError if they were edited."""
    values = dict(given)
    names = (*_LIVE, keys.PARAM_CURRENT)
    return _read_live((tuple((name, values[name]) for name in names if name in values), tasks, is_continued))


@remembered(most_bytes=4 * MIB, size=lambda key: sum(200 + len(value) for _, value in key[0]) + 100 * len(key[1]))
def _read_live(key: tuple[Pairs, tuple[str, ...], bool]) -> Live:
    """As `live_of`, from (these parameters, the names of the tasks, whether the job goes on in another Workflow).

    Most jobs have the same few values: those that wait, and those that run as they were submitted.
    """
    given, names, is_continued = key
    values, tasks = dict(given), set(names)
    rounds = _decoded(keys.PARAM_ROUNDS, values.get(keys.PARAM_ROUNDS))
    if len(set(rounds)) < len(rounds):
        raise _edited(keys.PARAM_ROUNDS)
    current = values.get(keys.PARAM_CURRENT, "")
    if not current and is_continued:
        current = rounds[-1]  # the job has left this Workflow
    if current not in rounds:
        raise _edited(keys.PARAM_CURRENT, f"one of {', '.join(rounds[-5:])}")
    granted = _decoded(keys.PARAM_GRANTED, values.get(keys.PARAM_GRANTED))
    for counts in granted.values():
        _check_size(counts.values(), what=f"the parameter {keys.PARAM_GRANTED}")
        if not counts.keys() <= tasks:
            raise _edited(keys.PARAM_GRANTED)
    if granted.get(current, {}).keys() != tasks:
        raise _edited(keys.PARAM_GRANTED, f"replicas of each task of round {current}")
    released = _decoded(keys.PARAM_RELEASED, values.get(keys.PARAM_RELEASED))
    incarnations = _decoded(keys.PARAM_INCARNATIONS, values.get(keys.PARAM_INCARNATIONS, "{}"))
    if not {key.split("/")[1] for key in incarnations} <= tasks:
        raise _edited(keys.PARAM_INCARNATIONS)
    memory = _decoded(keys.PARAM_MEMORY, values.get(keys.PARAM_MEMORY, "{}"))
    if not memory.keys() <= tasks:
        raise _edited(keys.PARAM_MEMORY)
    return Live(rounds, current, granted, frozenset(released), incarnations, memory)


_Released = Annotated[
    str, Meta(pattern=r"^[1-9][0-9]{0,8}/([0-9]{1,9}|[a-z0-9-]{1,63}/[0-9]{1,6}(\.[1-9][0-9]{0,8})?)\Z")
]
_Replica = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8}/[a-z0-9-]{1,63}/[0-9]{1,6}\Z")]
_Suffix = Annotated[str, Meta(pattern=r"^(\.[1-9][0-9]{0,8})?\Z")]
_Mib = Annotated[int, Meta(ge=1, le=MOST_MIB)]
_LIVE: Final[Mapping[str, tuple[Callable[[Any], Any], str]]] = {
    keys.PARAM_ROUNDS: (
        reader(Annotated[tuple[Round, ...], Meta(min_length=1, max_length=MOST_ROUNDS)]),
        'a list of numbers such as ["1","2"]',
    ),
    keys.PARAM_GRANTED: (
        reader(Annotated[dict[Round, dict[str, Annotated[int, Meta(ge=1)]]], Meta(max_length=MOST_ROUNDS)]),
        'replicas of each task by round, such as {"1":{"learner":1}}',
    ),
    keys.PARAM_RELEASED: (
        reader(Annotated[tuple[_Released, ...], Meta(max_length=_MOST_RELEASED)]),
        'a list of texts such as ["1/learner/2"]',
    ),
    keys.PARAM_INCARNATIONS: (
        reader(Annotated[dict[_Replica, _Suffix], Meta(max_length=_MOST_RELEASED)]),
        'a mapping from members to their suffixes, such as {"1/learner/2":".1"}',
    ),
    keys.PARAM_MEMORY: (
        reader(dict[str, _Mib]),
        'the MiB of tasks of the job, such as {"learner":2048}',
    ),
}


def _decoded(name: str, text: str | None) -> Any:
    """Raises InvalidError."""
    try:
        return _LIVE[name][0](text)
    except NotOfTypeError:
        raise _edited(name) from None


def _edited(name: str, wanted: str = "") -> InvalidError:
    return InvalidError(
        f"the parameter {name} is not what diflow wrote: it must be {wanted or _LIVE[name][1]}; put it back, or delete "
        "the job"
    )


def submitted_replicas(head: Object) -> dict[str, int]:
    """The replicas by task as submitted, from a Workflow's metadata; none if its DIJob is unreadable."""
    try:
        return {task.name: task.replicas for task in stored.read_job(stored_text(head)).spec.tasks}
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


_read_wanted: Final = reader(dict[str, Count])


@remembered(most_bytes=4 * MIB, size=lambda key: 300 + len(key[0]) + 100 * len(key[1]))
def _wanted(key: tuple[str, tuple[str, ...]]) -> dict[str, int] | None:
    """The replicas in (the parameter, the names of the tasks), one object for all equal ones."""
    given, tasks = key
    value = parsed(_read_wanted, given, None) if given else {}
    return value if value is not None and value.keys() <= set(tasks) and sum(value.values()) <= MOST_REPLICAS else None


class _Bound(Struct, frozen=True):
    min: Count
    max: Count


_read_bounds: Final = reader(dict[str, _Bound])


def _bounds(given: Any, tasks: tuple[str, ...]) -> dict[str, tuple[int, int]] | None:
    value = parsed(_read_bounds, given, None) if given else {}
    if value is None or not value.keys() <= set(tasks) or any(pair.min > pair.max for pair in value.values()):
        return None
    return {task: (pair.min, pair.max) for task, pair in value.items()}


def _is_report(given: str) -> bool:
    return not given or (len(given) <= LONGEST_PROFILINGS and _is_object(given))


_read_report: Final = reader(dict[str, Raw], most_characters=LONGEST_PROFILINGS)


@remembered(most_bytes=8 * MIB)
def _is_object(given: str) -> bool:
    return parsed(_read_report, given, None) is not None


def decision_of(given: Any) -> Decision:
    """The decision in the annotation; an empty one if there is none, or if it is not valid."""
    return _decision(given) if isinstance(given, str) and given else _UNDECIDED


@remembered(most_bytes=4 * MIB, size=lambda text: 200 + len(text))
def _decision(text: str) -> Decision:
    """Jobs that wait have few decisions in all."""
    said = parsed(_read_decision, text, _UNDECIDED)
    return Decision(said.action[:40], said.why[:_LONGEST_WHY], untrusted.time(said.time)) if said else _UNDECIDED


_read_decision: Final = lenient(Decision)


@dataclass(frozen=True, slots=True)
class History:
    """The phases of a job in its earlier Workflows, each as (phase, when it last began, when it last ended), and when
    the first of them started, in RFC 3339."""

    started: str = ""
    phases: tuple[tuple[str, str, str], ...] = ()


_NO_HISTORY: Final = History()


def history_of(given: Any) -> History:
    """The history in the annotation, without phases that are none."""
    found = parsed(_read_history, given, None) if given else None
    if found is None:
        return _NO_HISTORY
    given_phases = found.phases[:_MOST_PHASES]
    phases = ((phase, untrusted.time(began), untrusted.time(ended)) for phase, began, ended in given_phases)
    known = tuple((phase, began, ended or began) for phase, began, ended in phases if began)
    return History(untrusted.time(found.started), known)


class _Told(Struct, frozen=True):
    started: str = ""
    phases: tuple[tuple[str, str, Any], ...] = ()


_read_history: Final = lenient(_Told, most_characters=_LONGEST_HISTORY)
