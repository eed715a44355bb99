"""What `diflow.contrib` adds to the core, by the place that asks for it. The core imports none of it.

    records.side_by_side    diflow.record.side_by_side.Reader
    workflows.variables     diflow.workflows.pods.Variables
    controller.forms        diflow.controller.forms.Form
    controller.looks        diflow.controller.reconcile.Looks
    controller.versions     diflow.controller.crd.Version
    server.routes           diflow.server.api.routes.Routes

Beside each place is the protocol of what it asks for. `diflow.contrib` names all of them, as text, so that nothing is
imported before it is asked for, and nothing at all in a training process, which asks for none.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

_NAMED_IN: Final = "diflow.contrib"
_added: Final = dict[str, list[str]]()


def add(place: str, made_by: str) -> None:
    """Add something. `made_by`: "module:name" of what the place asks for."""
    _added.setdefault(place, []).append(made_by)


def places() -> frozenset[str]:
    """The places for which something was added."""
    import_module(_NAMED_IN)
    return frozenset(_added)


@cache
def found(place: str) -> tuple[Any, ...]:
    """What was added for a place, in the order in which it was added."""
    import_module(_NAMED_IN)
    named = (made_by.split(":") for made_by in _added.get(place, ()))
    return tuple(getattr(import_module(module), name) for module, name in named)
