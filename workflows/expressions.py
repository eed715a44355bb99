"""The expressions that Argo evaluates for a job: how many replicas, who is who, and which failures count.

They read the workflow parameters (see `diflow.keys`), so a patch of those changes a running job, and a job needs no
daemon to know its ranks. Language: expr (expr-lang), as in Argo's `{{=...}}`, `retryStrategy.expression` and hooks.
"""

from __future__ import annotations

from functools import lru_cache

from diflow import keys

_ROUND = "inputs.parameters.round"
_INDEX = "inputs.parameters.index"
_MEMBER = "inputs.parameters.member"

# What Argo's message says when a replica ended for no fault of its own. Argo shows the pod's status message if there is
# one (kubelet: evictions, rejections, shutdowns), else "<container>: <reason> (exit code n)", so anchors at the start
# keep a program from writing such a message itself.
# Sources: kubelet's pkg/kubelet/{eviction,lifecycle,nodeshutdown,preemption} and Argo's inferFailedReason.
UNCOUNTED_MESSAGES = (
    # the pod object vanished: the node was lost, or somebody deleted the pod
    "^pod deleted",
    # killed by SIGTERM or SIGKILL from outside: eviction by the API, preemption by the scheduler, a drained node.
    # Out of memory is told apart by its reason, OOMKilled.
    "^(main|wait): Error [(]exit code (137|143)[)]",
    # OutOfcpu, OutOfmemory, UnexpectedAdmissionError and the like
    "^Pod was rejected: ",
    # eviction by the kubelet because the node ran short (a pod over its own limits reads otherwise, and counts)
    "^The node (was|had) ",
    "^Preempted in order to admit critical pod",
    "^Pod was terminated in response to imminent node shutdown",
    # the node died with the pod on it, and no container's end was ever seen, or none had begun
    "^pod failed: neither main nor wait container completed",
    "^Pod failed before [a-z0-9-]+ container starts due to (ContainerCreating|PodInitializing): ",
    "^can.t find failed message for pod",
)

# The kubelet's words for a pod that the allocator stops: its way to end one gracefully is a deadline of a second.
STOPPED_MESSAGE = "^Pod was active on the node longer than the specified deadline"


@lru_cache(maxsize=256)
def granted(task: str) -> str:
    """How many replicas of `task` the round of this template may run, as an int.

    Argo 4.0 evaluates it once more for a round that has ended, with the raw text `{{item}}` in the round's place, and
    ends the job in Error if that fails. The result of that visit is thrown away, so any number will do.
    """
    of_round = f"(fromJSON(workflow.parameters.{keys.PARAM_GRANTED})[{_ROUND}] ?? {{}})"
    return f"int({of_round}['{task}'] ?? 1)"


@lru_cache(maxsize=256)
def members(task: str) -> str:
    """The replicas of `task` in this round as a JSON list of text: the index of each, with the suffix of its life.

    A replica that was dropped and is wanted again must have another name: Argo would take the old node for its result.
    What `granted` says about the raw round holds here too.
    """
    suffix = f"(fromJSON(workflow.parameters.{keys.PARAM_AGAIN})[{_ROUND} + '/{task}/' + string(#)] ?? '')"
    return f"toJson(map(0..({granted(task)} - 1), {{string(#) + string({suffix})}}))"


def index_of_item() -> str:
    """The index of the member that a fan-out over `members` makes, as text: what stands before the dot."""
    return "split(item, '.')[0]"


@lru_cache(maxsize=256)
def replicas(tasks: tuple[str, ...]) -> str:
    """How many replicas all of `tasks` have together in this round."""
    return " + ".join(granted(task) for task in tasks) if tasks else "0"


def rank(earlier: tuple[str, ...]) -> str:
    """The rank over the whole job of replica `index` of the task that stands behind the tasks `earlier`."""
    return f"{replicas(earlier)} + int({_INDEX})" if earlier else f"int({_INDEX})"


def rounds_before() -> str:
    """How many rounds the job had before this one. What `granted` says about the raw round holds here too."""
    return f"({_ROUND} matches '^[0-9]+$' ? int({_ROUND}) - 1 : 0)"


def host(task: str, index: str) -> str:
    """The full host name of one replica; `index` is an expression."""
    return (
        f"workflow.name + '-{task}-' + string({index}) + '.{keys.SERVICE_PREFIX}' + workflow.name"
        f" + '.' + workflow.namespace + '.svc.cluster.local'"
    )


@lru_cache(maxsize=256)
def hosts(tasks: tuple[str, ...]) -> str:
    """The hosts of all replicas of `tasks`, in the order of their ranks, comma-joined."""
    lists = [f"map(0..({granted(task)} - 1), {{{host(task, '#')}}})" for task in tasks]
    joined = lists[0] if len(lists) == 1 else f"concat({', '.join(lists)})"
    return f"join({joined}, ',')"


def template(expression: str) -> str:
    """The expression as an Argo template. A blank keeps a closing brace of its own apart from the tag's."""
    return "{{=" + expression + (" }}" if expression.endswith("}") else "}}")


def is_current() -> str:
    """Whether this template's round is the one that counts. Argo substitutes it anew at each evaluation."""
    return f"'{{{{{_ROUND}}}}}' == '{{{{workflow.parameters.{keys.PARAM_CURRENT}}}}}'"


def is_wanted(task: str) -> str:
    """Whether this replica is to run: its round counts, and diflow does not stop it on purpose."""
    member = f'"{{{{{_ROUND}}}}}/{task}/{{{{{_MEMBER}}}}}"'
    return f"{is_current()} && !('{{{{workflow.parameters.{keys.PARAM_RELEASED}}}}}' contains '{member}')"


def is_unwanted(task: str) -> str:
    """As `is_wanted`, the other way round and in the language of `{{=...}}`, for a `when`.

    Argo reads the rest of a `when` with another parser, which cannot take the quotes inside `released`.
    """
    member = f"'\"' + {_ROUND} + '/{task}/' + {_MEMBER} + '\"'"
    return (
        f"{_ROUND} != workflow.parameters.{keys.PARAM_CURRENT}"
        f" || workflow.parameters.{keys.PARAM_RELEASED} contains ({member})"
    )


@lru_cache(maxsize=256)
def is_uncounted() -> str:
    """Whether the last attempt ended for no fault of the job's own, so that it does not use the limit up."""
    return f"(lastRetry.message matches '{'|'.join(UNCOUNTED_MESSAGES)}')"


def is_stopped(*, deadline_seconds: float | None = None, restart: str = "") -> str:
    """Whether the last attempt ended because diflow stopped it, which uses no limit up either.

    That the replica is not wanted any more says the same, but Argo may judge a pod's end by a copy of the Workflow that
    is older than the stop. So the pod's own message must be enough to keep that end from being counted; what Argo then
    starts in its place is gated, and ends when Argo has seen that it is not wanted.

    `deadline_seconds`: the user's own deadline, whose passing is the job's fault. `restart`: the restart of the round
    to which the pod belongs; its pods are stopped as well when one of them has failed, and may not start again by
    themselves then, which the parameter `released` says.
    """
    found = f"lastRetry.message matches '{STOPPED_MESSAGE}'"
    if deadline_seconds is not None:
        # 0: Argo saw no container's end. Both times are cut to whole seconds, hence the second less.
        seconds = "float(lastRetry.duration)"
        found += f" && {seconds} > 0 && {seconds} < {deadline_seconds - 1:g}"
    if restart:
        mark = f'"{{{{{_ROUND}}}}}/{restart}"'
        found += f" && !('{{{{workflow.parameters.{keys.PARAM_RELEASED}}}}}' contains '{mark}')"
    return f"({found})"


def has_failed(task: str) -> str:
    """Whether the DAG task `task` beside this hook has failed."""
    return f"(tasks['{task}'].status == 'Failed' || tasks['{task}'].status == 'Error')"
