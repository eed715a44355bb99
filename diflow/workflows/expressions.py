"""The expressions that Argo evaluates for a job: the number of replicas, their ranks and hosts, which failures count.

They read the workflow parameters (see `diflow.common.keys`), so a patch of those changes a running job, and a job needs
no daemon to know its ranks. Language: expr (expr-lang), as in Argo's `{{=...}}`, `retryStrategy.expression` and hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from diflow.common import keys
from diflow.record.argo.failures import ALWAYS, STOPPED_MESSAGE, Rule, Rules

ROUND: Final = "inputs.parameters.round"
INDEX: Final = "inputs.parameters.index"
_MEMBER = "inputs.parameters.member"
WAIT_OR_MAIN: Final = f"{{{{={ROUND} == '' ? 'main' : 'wait'}}}}"
"""As a template, the name of a container of a job's pods: `wait`, and `main` of the step that stops the job."""


_OF_ROUND = f"fromJSON(workflow.parameters.{keys.PARAM_GRANTED})[{ROUND}]"
_TASKS = f"fromJSON(workflow.parameters.{keys.PARAM_TASKS})"
# The expressions below iterate over the parameter `tasks` instead of naming each task: every pod has several of them,
# so the Workflow's size would be quadratic in the tasks. Inside a predicate `#` is the name of the task.
_GRANTED = f"int({_OF_ROUND}?.[#] ?? 1)"
_DOMAIN = f" + '.{keys.SERVICE}.' + workflow.namespace + '.svc.cluster.local'"
_FIRST = "'0'"


@lru_cache(maxsize=256)
def granted(task: str) -> str:
    """How many replicas of `task` the round of this template may run, as an int.

    Argo 4.0 evaluates it once more for a round that has ended, with the raw text `{{item}}` in the round's place, and
    ends the job in Error if that fails. That result is discarded, so any number will do.
    """
    return f"int({_OF_ROUND}?.['{task}'] ?? 1)"


@lru_cache(maxsize=256)
def members(task: str) -> str:
    """The replicas of `task` in this round as a JSON list of text: each index with the suffix of its incarnation.

    A replica that was dropped and is wanted again needs a new name: Argo would take the old node's result for its own.
    What `granted` says about the raw round applies here too.
    """
    suffix = f"(fromJSON(workflow.parameters.{keys.PARAM_INCARNATIONS})[{ROUND} + '/{task}/' + string(#)] ?? '')"
    return f"toJson(map(0..{granted(task)} - 1, {{string(#) + string({suffix})}}))"


def index_of_item() -> str:
    """The index of the member in a fan-out over `members`, as text: the part before the dot."""
    return "split(item, '.')[0]"


def worker_ids(count: int) -> str:
    """The numbers of the `count` parallel workers of this replica, comma-joined, in a job of one task."""
    return f"join(map(0..{count} - 1, {{string(int({INDEX}) * {count} + #)}}), ',')"


def _addresses(pattern: str, task: str, index: str) -> str:
    """The pattern with the host of a replica in the place of each question mark."""
    return f"replace('{pattern}', '?', workflow.name + '-{task}-' + {index}{_DOMAIN})"


def attached_to_first(task: str, pattern: str) -> str:
    """The argument of `ditask` by which all others connect to the first replica of a job of one task."""
    return f"int({INDEX}) == 0 ? '' : '--attach-to=' + {_addresses(pattern, task, _FIRST)}"


def attached_to_earlier(task: str, pattern: str) -> str:
    """The argument of `ditask` by which each replica of a job of one task connects to all before it."""
    urls = f"join(map(0..int({INDEX}) - 1, {{{_addresses(pattern, task, 'string(#)')}}}), ',')"
    return f"int({INDEX}) == 0 ? '' : '--attach-to=' + {urls}"


def replicas() -> str:
    """The number of replicas of all tasks in this round."""
    return f"sum({_TASKS}, {{{_GRANTED}}})"


def rank(position: int) -> str:
    """The rank over the whole job of replica `index` of the task at `position` in the order of the tasks."""
    index = f"int({INDEX})"
    return f"sum({_TASKS}[:{position}], {{{_GRANTED}}}) + {index}" if position else index


def memory(task: str) -> str:
    """The MiB of memory of the main container of a task's next pod, as text. It is an argument of the pod's template,
    so that Argo records what each attempt had."""
    return f"string(int(fromJSON(workflow.parameters.{keys.PARAM_MEMORY})['{task}']))"


def rounds_before() -> str:
    """How many rounds the job had before this one. What `granted` says about the raw round applies here too."""
    return f"({ROUND} matches '^[0-9]+$' ? int({ROUND}) - 1 : 0)"


def _hosts(domain: str) -> str:
    """The hosts of task `#`, comma-joined. In the inner predicate `#` is the index: a slash, which no name has, is the
    placeholder of the task."""
    return f"replace(join(map(0..{_GRANTED} - 1, {{workflow.name + '-/-' + string(#){domain}}}), ','), '/', #)"


def hosts(*, short: bool) -> str:
    """The hosts of all replicas, in the order of their ranks, comma-joined. `short`: without their domain."""
    return f"join(map({_TASKS}, {{{_hosts('' if short else _DOMAIN)}}}), ',')"


# Whether Argo evaluates an expression elsewhere than in the fields of a pod that it creates. Whenever it looks at a
# Workflow, it substitutes the template of each node that has not ended: with the variable `node`, and once more with
# `lastRetry` if the node has retries. When it creates a pod, it substitutes the pod without these two. The pod then has
# a copy of its template, as JSON in a variable of an init container, where the backslash is escaped once more.
_LATER = r"len('\\') == 2 || 'node' in $env || 'lastRetry' in $env"


def at_creation(value: str) -> str:
    """The value, which Argo evaluates once, when it creates the pod, and not in the copy of the pod's template.

    For an annotation whose value is long. Argo keeps an expression whose result is nil and evaluates it later. The
    value cannot contain `<`, `>` or `&`: they are escaped in the copy, which is no valid expression then.
    """
    return f"{_LATER} ? nil : {value}"


def hosts_by_task() -> str:
    """The variables that list the hosts of one task each (`names.nodes_variable`), as a part of a JSON text.

    It begins inside the name of the first variable and ends inside the value of the last one: between
    `[{"name":"` and `"}]` it completes the list, so that the text is valid JSON before Argo evaluates it, too.
    """
    variable = "'DI_' + upper(replace(#, '-', '_')) + '_NODES'"
    items = f"join(map({_TASKS}, {{toJson({{'name': {variable}, 'value': {_hosts(_DOMAIN)}}})}}), ',')"
    start, end = '{"name":"', '"}'
    return f"{items}[{len(start)}:-{len(end)}]"


def node(task: str, *, attempt: str) -> str:
    """The node of a pod that is created without a gate, "" for other pods.

    The parameter `places` has the nodes of the first pods of a job, which have no others to wait for. It names the
    Workflow and the attempt as well, and the time until which it holds: a pod of a copy (`argo resubmit`), or one that
    is created again later (by a retry, or after `argo retry`), has a gate, whatever the parameter says. `attempt`: the
    expression of the pod's counted attempt.
    """
    return f"{_PLACES}; {_node(task, attempt)}"


_PLACES = f"let p = fromJSON(workflow.parameters.{keys.PARAM_PLACES})"


def _node(task: str, attempt: str) -> str:
    key = f"{ROUND} + '/{task}/' + {_MEMBER} + '/' + {attempt} + '/' + string(retries)"
    return f"now().Unix() < (p.until ?? 0) and p.uid == workflow.uid ? (p[{key}] ?? '') : ''"


def gate_or_node(task: str, gates: Sequence[str], *, attempt: str) -> str:
    """The fields of a pod's spec with its gates: those of the user, and diflow's or the node instead (`node`). They are
    a part of a JSON text.

    It begins inside the name of the first field and ends inside the name of the field `nodeName`: between `{"` and
    `":null}` it completes the object, so that the text is valid JSON before Argo evaluates it, too. `q` is a double
    quote, which the expression cannot contain, as it is in a JSON text.
    """
    own, all_ = (", ".join(f"{{'name': '{gate}'}}" for gate in some) for some in (gates, (*gates, keys.GATE)))
    return (
        f"{_PLACES}; let n = ({_node(task, attempt)}); let q = toJson('')[:1];"
        f" 'schedulingGates' + q + ':' + (n == '' ? toJson([{all_}])"
        f" : toJson([{own}]) + ',' + q + 'nodeSelector' + q + ':' + toJson({{'{keys.HOSTNAME}': n}}))"
        " + ',' + q + 'nodeName'"
    )


def template(expression: str) -> str:
    """The expression as an Argo template. A blank separates a closing brace from those of the tag."""
    return "{{=" + expression + (" }}" if expression.endswith("}") else "}}")


def is_current() -> str:
    """Whether this template's round is the current one. Argo substitutes the parameters at each evaluation."""
    return f"'{{{{{ROUND}}}}}' == '{{{{workflow.parameters.{keys.PARAM_CURRENT}}}}}'"


def is_wanted(task: str) -> str:
    """Whether this replica should run: its round is current, and diflow does not stop it on purpose."""
    return f"{is_current()} && {is_kept(task)}"


def is_kept(task: str) -> str:
    """Whether diflow does not stop this replica on purpose, whatever its round."""
    member = f'"{{{{{ROUND}}}}}/{task}/{{{{{_MEMBER}}}}}"'
    return f"!('{{{{workflow.parameters.{keys.PARAM_RELEASED}}}}}' contains '{member}')"


def is_unwanted(task: str) -> str:
    """The negation of `is_wanted` in the language of `{{=...}}`, for a `when`.

    Argo's parser of a `when` cannot read the quotes inside `released`.
    """
    return f"{ROUND} != workflow.parameters.{keys.PARAM_CURRENT} || {is_released(task)}"


def is_released(task: str) -> str:
    """The negation of `is_kept` in the language of `{{=...}}`."""
    member = f"'\"' + {ROUND} + '/{task}/' + {_MEMBER} + '\"'"
    return f"workflow.parameters.{keys.PARAM_RELEASED} contains ({member})"


@lru_cache(maxsize=256)
def is_uncounted(rules: Rules = ALWAYS) -> str:
    """Whether the last attempt does not count against backoffLimit, by the first of the rules that matches."""
    groups: list[tuple[bool, list[Rule]]] = []
    for rule in rules.rules:
        is_free = rule.action not in ("Count", "FailJob")
        if groups and groups[-1][0] == is_free:
            groups[-1][1].append(rule)
        else:
            groups.append((is_free, [rule]))
    if groups and not groups[-1][0]:
        groups.pop()  # what no rule matches counts, too
    out = "false"
    for is_free, some in reversed(groups):
        found = _any_applies(some)
        rest = f"({found} || {out})" if is_free else f"(!({found}) && {out})"
        out = f"({found})" if out == "false" else rest
    return out


def _any_applies(rules: Sequence[Rule]) -> str:
    """Whether one of the rules is about the last attempt."""
    plain = "|".join(rule.matches for rule in rules if not rule.unless)
    parts = [_says(plain)] if plain else []
    parts += [f"({_says(rule.matches)} && !({_says(rule.unless)}))" for rule in rules if rule.unless]
    return " || ".join(parts)


def _says(pattern: str) -> str:
    return f"lastRetry.message matches '{pattern}'"


def ends_the_job(dag_task: str, rules: Rules) -> str:
    """Whether the failed DAG task beside this hook ends the job, by the exit code of its main container; "" if no rule
    says so. A hook sees the exit code, and no message."""
    if not any(rule.action == "FailJob" and rule.operator for rule in rules.rules):
        return ""
    code = f"(tasks['{dag_task}']?.exitCode ?? '')"
    out = "false"
    for rule in reversed([rule for rule in rules.rules if rule.operator]):
        codes = ", ".join(f"'{value}'" for value in rule.codes)
        # No exit code, or 0: another container failed, or none did.
        found = f"{code} in [{codes}]" if rule.operator == "In" else f"!({code} in ['', '0', {codes}])"
        out = f"({found} ? {str(rule.action == 'FailJob').lower()} : {out})"
    return out


def is_stopped(*, deadline_seconds: float | None = None, restart: str = "") -> str:
    """Whether the last attempt ended because diflow stopped it, which does not count against backoffLimit either.

    `is_wanted` is false then, but Argo may evaluate a pod's end with a copy of the Workflow from before the stop. So
    the pod's own message must suffice; the replacement that Argo then creates is gated, and ends when Argo sees that it
    is not wanted.

    `deadline_seconds`: the user's own deadline, which counts when it is exceeded. `restart`: the restart of the round
    that the pod belongs to; when one of its pods fails, the others are stopped as well, and the parameter `released`
    keeps them from restarting individually.
    """
    found = f"lastRetry.message matches '{STOPPED_MESSAGE}'"
    if deadline_seconds is not None:
        # 0: Argo saw no container's termination. Both times are truncated to seconds, hence the second less.
        seconds = "float(lastRetry.duration)"
        found += f" && {seconds} > 0 && {seconds} < {deadline_seconds - 1:g}"
    if restart:
        mark = f'"{{{{{ROUND}}}}}/{restart}"'
        found += f" && !('{{{{workflow.parameters.{keys.PARAM_RELEASED}}}}}' contains '{mark}')"
    return f"({found})"


def has_failed(task: str) -> str:
    """Whether the DAG task `task` beside this hook has failed."""
    return f"tasks['{task}'].status in ['Failed', 'Error']"
