"""What is said of a field that a DIJob does not have: where a field of its name belongs, what other programs' fields
are called here, or the known name that was probably meant.

A name that is known elsewhere is no misspelling of another one: its place is looked for before similar names are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from diflow.common.words import meant
from diflow.dijob.rules import podtemplate, podtypes
from diflow.dijob.rules.fields import UNKNOWN

IN_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations")
"""The fields of a manifest's metadata that its user sets."""
_INDEX: Final = re.compile(r"\[\d*\]")
_TEMPLATE: Final = "spec.tasks[].template"
_ROOT: Final = ("apiVersion", "kind", "metadata", "spec")
_MOST_LISTED: Final = 12
_NOT_MEANT: Final = ("volumes[]", "affinity", ".env[]", ".lifecycle", "Probe")
"""Parts of a template whose fields have common names: they are suggested only within them."""


def said(path: str, job: type[BaseModel]) -> str:
    """What to say of the unknown field at `path`, such as `spec.tasks[0].replcas`, after the path itself. `job`: the
    model of a DIJob."""
    return f"is not known{_hint(path, _fields(job))}"


def _hint(path: str, fields: Mapping[str, Sequence[str]]) -> str:
    """What follows `is not known`: ": did you mean replicas?"."""
    parent, _, name = path.rpartition(".")
    if parent.startswith("template"):  # of a task that is made in Python
        parent = f"spec.tasks[].{parent}"
    general = _INDEX.sub("[]", parent)
    here = fields.get(general, ())
    if note := _note(general, name):
        return f": {note}"
    if same := _almost(name, here):
        return f": did you mean {same}?"
    if place := _nearest(general, fields, lambda at: name in fields[at]):
        return f" here: it belongs to {_located(place, parent)}.{name}"
    if close := meant(name, sorted(here)):
        return f": did you mean {close}?"
    if place := _nearest(general, fields, lambda at: bool(_almost(name, fields[at]))):
        return f" here: did you mean {_located(place, parent)}.{_almost(name, fields[place])}?"
    return f": known here are {', '.join(sorted(here))}" if 0 < len(here) <= _MOST_LISTED else ""


def _nearest(general: str, fields: Iterable[str], has: Callable[[str], bool]) -> str:
    """The part of a manifest that `has` the field and is nearest to the one where it was found; "" if there is none."""
    places = (at for at in fields if at and has(at) and not any(p in at and p not in general for p in _NOT_MEANT))
    return min(places, key=_nearness(general), default="")


def _note(parent: str, name: str) -> str:
    """What is known of a field that a DIJob has in another form, or not at all."""
    return UNKNOWN.get(parent, {}).get(name, "")


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _almost(name: str, known: Iterable[str]) -> str:
    """A name that differs from this one by its spelling alone."""
    return next((one for one in known if _letters(one) == _letters(name)), "")


def _nearness(general: str) -> Callable[[str], tuple[int, int, str]]:
    """The order of places for a field that was found at `general`: what it is a part of, what is a part of it, the
    others."""

    def key(at: str) -> tuple[int, int, str]:
        if _is_within(general, at):
            return 0, -len(at), at
        if _is_within(at, general):
            return 1, at.count(".") * 1000 + len(at), at
        return 2, at.count(".") * 1000 + len(at), at

    return key


def _is_within(inner: str, outer: str) -> bool:
    return not outer or inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def _located(at: str, parent: str) -> str:
    """A general place with the indexes of `parent`, as far as they go together."""
    steps, given = at.split("."), parent.split(".")
    for i, (step, own) in enumerate(zip(steps, given, strict=False)):
        if _INDEX.sub("[]", own) != step:
            break
        steps[i] = own
    return ".".join(steps)


@cache
def _fields(job: type[BaseModel]) -> Mapping[str, Sequence[str]]:
    """The names of the fields of each part of a manifest, by its path with `[]` for an index."""
    out: dict[str, Sequence[str]] = {"": _ROOT}
    _add(job, "spec", out)
    _add(podtypes.PodTemplate, _TEMPLATE, out)
    volumes: dict[str, Sequence[str]] = {}
    _add(podtypes.Volumes, "spec", volumes)
    out |= {at: names for at, names in volumes.items() if at != "spec"}
    out["metadata"] = IN_METADATA
    out["spec"] = [name for name in out["spec"] if name not in IN_METADATA]
    return out


def _add(shape: Any, at: str, out: dict[str, Sequence[str]]) -> None:
    """Add the parts of a type of fields, those that stand higher first."""
    waiting = [(shape, at)]
    for inner, here in waiting:
        if isinstance(inner, tuple) and inner[0] is list:
            waiting.append((inner[1], f"{here}[]"))
        elif podtemplate.has_fields(inner):
            fields = podtemplate.fields_of(inner)
            out[here] = list(fields)
            waiting += [(field, f"{here}.{name}") for name, field in fields.items()]
