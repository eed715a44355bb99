"""Expressions that Argo evaluates in the Workflow of a job with a coordinator: of its parameter `modules`."""

from __future__ import annotations

from diflow.common import keys
from diflow.workflows.expressions import INDEX, ROUND


def indices(module: str) -> str:
    """The replicas of a module that this round adds, as a JSON list of their indices as text. What `granted` says about
    the raw round applies here too."""
    count = f"len(fromJSON(workflow.parameters.{keys.PARAM_MODULES})[{ROUND}]?.['{module}']?.ids ?? [])"
    return f"toJson(map(0..{count} - 1, {{string(#)}}))"


def only_in(round_: str) -> str:
    """One replica in this round, none in the others, as a JSON list."""
    return f"{ROUND} == '{round_}' ? '[\"0\"]' : '[]'"


def _group(module: str) -> str:
    return f"fromJSON(workflow.parameters.{keys.PARAM_MODULES})[{ROUND}]['{module}']"


def identity(module: str, *, index: str = f"int({INDEX})", is_renamed: bool = True) -> str:
    """`<module>-<id>`, the end of the host name of a replica, as an expression in parentheses. `is_renamed`: with the
    number of the pod, from the second one on."""
    again = " + (int(retries) == 0 ? '' : '-' + string(retries))" if is_renamed else ""
    return f"('{module}-' + {_group(module)}.ids[{index}]{again})"


def of_each(module: str, name: str) -> str:
    """A text of a ddp learner of its own."""
    return f"{_group(module)}.each[int({INDEX})].{name}"


def is_first() -> str:
    """Whether this is the first replica of its module in the round."""
    return f"int({INDEX}) == 0"


def count(module: str) -> str:
    """The replicas of a module that this round adds, as an int."""
    return f"len({_group(module)}.ids)"


def requested(module: str, *, own: bool) -> str:
    """The fields of a container that a request sets: `resources` and, of a ddp learner (`own`), `ports`. They are a
    part of a JSON text.

    It begins inside the name of the first field and ends inside the name of `stdinOnce`: between `"` and `":null` it
    completes the fields, so that the text is valid JSON before Argo evaluates it, too.
    """
    one = f"{_group(module)}.each[int({INDEX})]" if own else _group(module)
    ports = " + 'ports' + q + ':' + toJson(g.ports ?? []) + ',' + q" if own else ""
    return (
        f"let g = {one}; let q = toJson('')[:1]; let r = toJson(g.resources ?? {{}});"
        f" 'resources' + q + ':{{' + q + 'limits' + q + ':' + r + ',' + q + 'requests' + q + ':' + r + '}},' + q"
        f"{ports} + 'stdinOnce'"
    )
