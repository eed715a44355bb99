"""Why a pod ended, and what follows: one table of rules for Argo's expressions and for all readers.

A program's own output must not affect this. Argo shows the pod's status message if there is one (kubelet: evictions,
rejections, shutdowns), else "<container>: <reason> (exit code n)", so each pattern is anchored at the start.
Sources: kubelet's pkg/kubelet/{eviction,lifecycle,nodeshutdown,preemption}, its kubelet_pods.go, containerd's
pkg/cri/server/restart.go and Argo's inferFailedReason; the exit codes of the default rules are those of DLRover's job
master.

The patterns use the syntax that Go's regexp and Python's re share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from diflow.common import keys
from diflow.dijob.stored import Action, FailurePolicy, FailureRule, StoredSpec
from diflow.record import untrusted

UNCOUNTED_MESSAGES: Final = (
    # the pod object is gone: the node was lost, or a user deleted the pod
    "^pod deleted",
    # the pod was not created: its ServiceAccount is missing
    '^pods "[^"]+" is forbidden: error looking up service account ',
    # killed by SIGTERM or SIGKILL from outside: eviction by the API, preemption by the scheduler, a drained node.
    # Out of memory has a different reason, OOMKilled.
    "^(init|main|wait): Error [(]exit code (137|143)[)]",
    # SIGTERM before argoexec handles signals: a Go program that is process 1 then ends itself with 2, and says nothing.
    # Argo's own failures with this code have a message. In the main container 2 may be the program's own exit code.
    "^(init|wait): Error [(]exit code 2[)]$",
    # the node was restarted: its container runtime, or its kubelet, has not seen how the container ended
    "^[a-z0-9-]+: (Unknown|ContainerStatusUnknown) [(]exit code ",
    # OutOfcpu, OutOfmemory, UnexpectedAdmissionError and the like
    "^Pod was rejected: ",
    # eviction by the kubelet under node pressure (a pod over its own limits has another message, and counts)
    "^The node (was|had) ",
    "^Preempted in order to admit critical pod",
    "^Pod was terminated in response to imminent node shutdown",
    # the node failed with the pod on it: no container's termination was seen, or no container had started
    "^pod failed: (neither main nor wait container completed|(main|wait) container did not complete) successfully",
    "^Pod failed before [a-z0-9-]+ container starts due to (ContainerCreating|PodInitializing): ",
    "^can.t find failed message for pod",
)

STOPPED_MESSAGE: Final = "^Pod was active on the node longer than the specified deadline"
"""The kubelet's message for a pod that the allocator stops: it sets activeDeadlineSeconds to 1 for a graceful stop."""

MAIN: Final = "main"
"""Argo's name of the main container."""
OUT_OF_MEMORY: Final = "out of memory"
TAKEN_AWAY: Final = "taken away"
STOPPED: Final = "stopped"
UNKNOWN: Final = "unknown"
_NOT_THE_JOBS: Final = "^(init|wait): "
_UNCOUNTED: Final = re.compile("|".join(UNCOUNTED_MESSAGES))
_STOPPED: Final = re.compile(STOPPED_MESSAGE)
_NEVER_BEGAN: Final = re.compile(
    # containerd's and Docker's reasons for a container that their runtime did not start
    "^[a-z0-9-]+: (StartError|ContainerCannotRun) [(]exit code "
    # the kubelet's device plugins and its topology manager, before anything is started
    "|^Pod was rejected: (Allocate failed due to |Resources cannot be allocated with Topology locality)"
)
_LACKS_PROGRAM: Final = re.compile(
    '(unable to start container process|starting container process caused): (error during container init: )?exec: "'
)
_CODE: Final = re.compile(r"^([a-z0-9-]+): ([A-Za-z]+) [(]exit code ([0-9]{1,10})[)]", re.ASCII)
_END: Final = re.compile(r"[a-z0-9-]++: [A-Za-z]++ [(]exit code [0-9]++[)](?s:.?)")
_MOST_KNOWN: Final = 32
_LONGEST_KNOWN: Final = 120
_OOM: Final = "OOMKilled"
_UNSEEN: Final = ("Unknown", "ContainerStatusUnknown")
_NO_DISRUPTION: Final = ("^Pod was rejected", "^Pod failed before", "^can.t find")
_LONGEST: Final = 4096
_REASONS: Final[Mapping[int, str]] = {
    247: OUT_OF_MEMORY,
    137: "killed",
    143: "killed",
    1: "error of the program",
    134: "error of the program",
    201: "hardware",
    202: "hardware",
    14: "hardware",
    0: "done",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it is applied to Argo's message of a failed attempt. The first that matches decides.

    `unless`: a pattern that must not match. `named`: the rule for people. `operator`, `codes`: what it says of the exit
    code of the main container; "" and () for a rule about something else.
    """

    action: Action
    named: str
    matches: str
    unless: str = ""
    operator: str = ""
    codes: tuple[int, ...] = ()

    def applies(self, message: str) -> bool:
        """Whether the rule is about a failure with this message."""
        return bool(_pattern(self.matches).match(message)) and not (
            self.unless and _pattern(self.unless).match(message)
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the failure of an attempt. `rule` is the rule that decided, for people."""

    action: Action
    reason: str
    rule: str

    @property
    def is_counted(self) -> bool:
        """It uses one of the restarts of backoffLimit, or ends the job."""
        return self.action in ("Count", "FailJob")


_OTHER: Final = "none: all other failures"


@dataclass(frozen=True)
class Rules:
    """The rules of one task of a job, in their order. `is_asked`: the job has a failure policy."""

    rules: tuple[Rule, ...]
    is_asked: bool = False

    def judge(self, message: str) -> Verdict:
        """The verdict on a failed attempt with this message of Argo's."""
        message = message[:_LONGEST]
        found = _END.match(message)
        if found is None or len(found[0]) > _LONGEST_KNOWN:
            return self._judge(message)
        # Patterns that match such a message tell apart whether something follows its exit code, but not what.
        known = self._known.get(found[0])
        if known is None:
            known = self._judge(message)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[found[0]] = known
        return known

    @cached_property
    def _known(self) -> dict[str, Verdict]:
        """The verdicts on the last ends of containers: of a thousand pods most end alike, and there may be twenty rules
        of 255 codes each."""
        return {}

    def _judge(self, message: str) -> Verdict:
        for rule in self.rules:
            if rule.applies(message):
                return Verdict(rule.action, reason_of(message), rule.named)
        return Verdict("Count", reason_of(message), _OTHER)

    @cached_property
    def asks_for_memory(self) -> bool:
        """Whether a rule may give the task more memory."""
        return any(rule.action == "MoreMemory" for rule in self.rules)


def reason_of(message: str) -> str:
    """Why an attempt failed, in a few words: "" if Argo says nothing about it."""
    if _STOPPED.match(message):
        return STOPPED
    found = _CODE.match(message)
    if found is not None and found[2] == _OOM:
        return OUT_OF_MEMORY
    if found is not None and found[2] in _UNSEEN:
        return TAKEN_AWAY
    if found is not None and int(found[3]) in _REASONS:
        return _REASONS[int(found[3])]
    if _UNCOUNTED.match(message):
        return TAKEN_AWAY
    return UNKNOWN if message else ""


def ended_container(message: str) -> tuple[str, int]:
    """The container that Argo's message names as the one that failed, and its exit code; ("", 0) if it names none."""
    found = _CODE.match(message)
    return (found[1], int(found[3])) if found is not None else ("", 0)


_NODE_CHECK: Final = Rule("Elsewhere", "node check", f"^{keys.CHECK_CONTAINER}: [A-Za-z]+ [(]exit code [0-9]+[)]")
_TAKEN_AWAY: Final = Rule("Ignore", "default: evicted, preempted or lost", "|".join(UNCOUNTED_MESSAGES))
ALWAYS: Final = Rules((_TAKEN_AWAY,))
"""The rules of a job without a failure policy."""


def is_uncounted(message: str) -> bool:
    """Whether Argo's message says that the pod failed for an external reason, which does not count."""
    return _UNCOUNTED.match(message[:_LONGEST]) is not None


def is_stop(message: str) -> bool:
    """Whether Argo's message says that the pod was stopped at its deadline, as the allocator stops pods."""
    return _STOPPED.match(message[:_LONGEST]) is not None


def is_of_node(message: str) -> bool:
    """Whether Argo's message says that no program of the user was started, and that its node may be why: a runtime, a
    driver or a device that fails. A program that its image does not have is missing on all nodes."""
    message = message[:_LONGEST]
    return _NEVER_BEGAN.match(message) is not None and not _LACKS_PROGRAM.search(message)


@lru_cache(maxsize=1024)
def rules_of(
    policy: FailurePolicy | None,
    *,
    has_allocator: bool = False,
    has_memory: bool = False,
    main: str = "",
    checks_nodes: bool = False,
) -> Rules:
    """The rules of one task: those of the job's policy, and then the default ones. None: it has no policy.

    Only the allocator places a pod elsewhere or gives it more memory: without it the failure counts. `has_memory`:
    the main container requests memory or has a limit, of which more can be given. `main`: its name in the manifest.
    `checks_nodes`: it has a node check of its own, whose failures are those of the node, by the first rule.
    """
    if policy is None and not (checks_nodes and has_allocator):
        return ALWAYS
    rules = [_NODE_CHECK] if checks_nodes else []
    if policy is None:
        rules.append(_TAKEN_AWAY)
    else:
        rules += [*(_given(rule, i, main) for i, rule in enumerate(policy.rules)), _TAKEN_AWAY, *_DEFAULTS]
    can = {"Elsewhere": has_allocator, "MoreMemory": has_allocator and has_memory}
    lacks = "the allocator" if not has_allocator else "a memory request of the task"
    return Rules(
        tuple(
            rule
            if can.get(rule.action, True)
            else Rule("Count", f"{rule.named} ({rule.action}, which needs {lacks})", rule.matches, rule.unless)
            for rule in rules
        ),
        is_asked=True,
    )


def rules_of_task(job: StoredSpec, task: str, *, has_memory: bool) -> Rules:
    """What follows when a replica of a task of this job fails. `has_memory`: it may get more memory."""
    if not job.has_rules:
        return ALWAYS
    return rules_of(
        job.failure_policy,
        has_allocator=job.has_allocator,
        has_memory=has_memory,
        main=job.main(task) if job.failure_policy is not None else "",
        checks_nodes=job.checks_nodes,
    )


def _codes(values: Sequence[int], container: str, reason: str = "[A-Za-z]+") -> str:
    return f"^{container}: {reason} [(]exit code ({'|'.join(map(str, values))})[)]"


def _given(given: FailureRule, index: int, main: str) -> Rule:
    named, on = f"failurePolicy.rules[{index}]", given.on_exit_codes
    if on is None:
        # Not of rejected pods: the allocator ends those that it releases as the kubelet rejects one.
        return Rule(given.action, named, "|".join(m for m in UNCOUNTED_MESSAGES if not m.startswith(_NO_DISRUPTION)))
    of_main = on.container_name in (None, main, MAIN)
    of_all = "[a-z0-9-]+" if on.container_name is None else MAIN if of_main else on.container_name
    if given.action == "MoreMemory":
        of_all = MAIN  # the memory of other containers stays as it is
    unless = [] if on.container_name else [_NOT_THE_JOBS]
    if on.operator == "In":
        matches = _codes(on.values, of_all)
    else:
        matches = f"^{of_all}: [A-Za-z]+ [(]exit code [0-9]+[)]"
        unless.append(_codes(on.values, "[a-z0-9-]+"))
    if given.action == "MoreMemory":
        unless.append(_codes((137,), MAIN, "Error"))  # killed, and not for its memory
    operator, codes = (on.operator, on.values) if of_main else ("", ())
    return Rule(given.action, named, matches, "|".join(unless), operator, codes)


_DEFAULTS: Final = (
    Rule(
        "MoreMemory",
        "default: out of memory",
        f"^{MAIN}: {_OOM} [(]exit code [0-9]+[)]|{_codes((247,), MAIN)}",
    ),
    Rule("Elsewhere", "default: hardware", _codes((201, 202, 14), MAIN)),
    Rule("Count", "default: error of the program", _codes((1, 134), MAIN)),
)
"""DLRover's rules, after that of pods that were taken away."""


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def message_of(status: Mapping[str, Any], terminated: Mapping[str, Any], *, container: str) -> str:
    """The message that Argo will show for a pod that has ended, given its status and its main container's state."""
    if said := untrusted.string(status.get("message"), most=_LONGEST):
        return said
    code = terminated.get("exitCode")
    reason = untrusted.string(terminated.get("reason"), most=100) or "Error"
    return f"{container}: {reason} (exit code {code})" if isinstance(code, int) and code else ""
