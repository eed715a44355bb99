"""The small jobs and Workflows that a probe runs. Pure.

Jobs are rendered by diflow. If a fact needs a structure that diflow never renders (a reordered or empty group, a bare
retry), this module builds a similar Workflow.
"""

from __future__ import annotations

from typing import Any, Final

from diflow import DIJob, Task
from diflow.common import keys

Json = dict[str, Any]

TASK: Final = "worker"
# A gate of the probe's own, so that the cluster's allocator ignores its pods.
GATE: Final = "diflow/probe"
STOPPED_EXIT_CODE: Final = 17
STOPPED_WORD: Final = "saving a checkpoint"
# The annotation that a pod of `until_told` waits for.
TOLD: Final = "diflow/probe-told"
# An annotation with a value that Argo is to evaluate only when it creates a pod, as the list of hosts of large jobs.
LATE: Final = "diflow/probe-late"
LATE_EXPRESSION: Final = "'evaluated' + '-once'"
LATE_VALUE: Final = "evaluated-once"
WITNESS: Final = "witness"
PARAM_WITNESSES: Final = "witnesses"
PARAM_HOLD: Final = "hold"
# A pod that is not stopped ends by itself, long after the probe.
_LIFETIME_SECONDS: Final = 900
# The same for leaves without pods.
_DEADLINE_SECONDS: Final = 900

_RESOURCES: Final = {"requests": {"cpu": "10m", "memory": "8Mi"}}


def until_stopped() -> str:
    """A shell script that succeeds after a while; on SIGTERM it writes a word and exits with STOPPED_EXIT_CODE."""
    # A non-interactive shell handles signals only after a foreground sleep, hence `wait`.
    return f"trap 'echo {STOPPED_WORD}; exit {STOPPED_EXIT_CODE}' TERM; echo started; sleep {_LIFETIME_SECONDS} & wait"


def until_told() -> str:
    """As `until_stopped`, for a pod with `TELLABLE`; it succeeds as soon as its annotation TOLD has a value."""
    return (
        f"trap 'echo {STOPPED_WORD}; exit {STOPPED_EXIT_CODE}' TERM; echo started; i=0; "
        f"until [ -s {_TOLD_FOLDER}/word ] || [ $i -ge {_LIFETIME_SECONDS} ]; do sleep 1 & wait $!; i=$((i+1)); done"
    )


_TOLD_FOLDER: Final = "/probe"
_TOLD_FIELD: Final = {"path": "word", "fieldRef": {"fieldPath": f"metadata.annotations['{TOLD}']"}}
# Fields of `job` for pods of `until_told`.
TELLABLE: Final[Json] = {
    "container": {"volumeMounts": [{"name": "told", "mountPath": _TOLD_FOLDER}]},
    "volumes": [{"name": "told", "downwardAPI": {"items": [_TOLD_FIELD]}}],
}


def witnessed(workflow: Json) -> Json:
    """The Workflow with an additional group in its DAG, whose growth proves that Argo has acted on a patch.

    Each patch also grows this group. Argo saves the result of a reconciliation as a whole, so when the new member
    exists, all other effects of the patch do, too. A member, and with it the Workflow, waits for the duration in the
    parameter `hold`.
    """
    spec = workflow["spec"]
    spec["arguments"]["parameters"] += [
        {"name": PARAM_WITNESSES, "value": "1"},
        {"name": PARAM_HOLD, "value": f"{_DEADLINE_SECONDS}s"},
    ]
    main = next(item for item in spec["templates"] if item["name"] == spec["entrypoint"])
    main["dag"]["tasks"].append(
        {
            "name": WITNESS,
            "template": WITNESS,
            "withSequence": {"count": f"{{{{workflow.parameters.{PARAM_WITNESSES}}}}}"},
        }
    )
    spec["templates"].append({"name": WITNESS, "suspend": {"duration": f"{{{{workflow.parameters.{PARAM_HOLD}}}}}"}})
    return workflow


def annotated(workflow: Json, annotation: str, value: str) -> Json:
    """The Workflow with one more annotation in the template of the task's pods."""
    pod = next(item for item in workflow["spec"]["templates"] if item["name"] == TASK)
    pod["metadata"]["annotations"][annotation] = value
    return workflow


def job(
    name: str,
    image: str,
    script: str,
    *,
    replicas: int = 1,
    preemptible: bool = False,
    backoff_limit: int = 2,
    container: Json | None = None,
    **pod: Any,
) -> DIJob:
    """A DIJob with one task, whose container runs a shell script. `pod` are fields of its pods' spec."""
    main = {
        "name": keys.MAIN_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": _RESOURCES,
        **(container or {}),
    }
    template = {"spec": {"terminationGracePeriodSeconds": 10, **pod, "containers": [main]}}
    return DIJob(
        name=name,
        tasks=(Task(name=TASK, replicas=replicas, template=template),),
        preemptible=preemptible,
        backoff_limit=backoff_limit,
        clean_pod_policy="None",
    )


def named_group(name: str) -> Json:
    """A group over the list in the parameter `members`, with waiting leaves without pods."""
    return witnessed(
        _workflow(
            name,
            {"members": '["a","b","c"]'},
            [{**_group(), "withParam": "{{workflow.parameters.members}}"}],
            [_leaf()],
        )
    )


def counted_groups(name: str) -> Json:
    """Two groups with the sizes in the parameters `empty` (0) and `shrinks` (2)."""
    return witnessed(
        _workflow(
            name,
            {"empty": "0", "shrinks": "2"},
            [
                {**_group(group), "withSequence": {"count": f"{{{{workflow.parameters.{group}}}}}"}}
                for group in ("empty", "shrinks")
            ],
            [_leaf()],
        )
    )


def retries(name: str, image: str) -> Json:
    """Three leaves with failing pods, each retried by its expression.

    `sees` fails immediately and is retried while each variable in the expression is as expected; `bare` uses a workflow
    parameter without braces; `anew` runs until it is stopped and is retried by the parameters at that time.
    """
    sees = (
        "retries == '0' && lastRetry.exitCode == '7' && lastRetry.status == 'Failed'"
        " && lastRetry.message contains 'exit code 7' && float(lastRetry.duration) >= 0"
    )
    anew = "'{{workflow.parameters.global}}' == 'yes' || '{{inputs.parameters.local}}' == 'yes'"
    return witnessed(
        _workflow(
            name,
            {"global": "yes", "local": "no"},
            [
                {"name": "sees", "template": "sees"},
                {"name": "bare", "template": "bare"},
                {
                    "name": "anew",
                    "template": "anew",
                    "arguments": {"parameters": [{"name": "local", "value": "{{workflow.parameters.local}}"}]},
                },
            ],
            [
                {**_pod(image, "exit 7"), "name": "sees", "retryStrategy": _retry(sees)},
                {
                    **_pod(image, "exit 7"),
                    "name": "bare",
                    "retryStrategy": _retry("workflow.parameters.global == 'yes'"),
                },
                {
                    **_pod(image, until_stopped()),
                    "name": "anew",
                    "inputs": {"parameters": [{"name": "local"}]},
                    "retryStrategy": _retry(anew),
                },
            ],
        )
    )


def _workflow(name: str, parameters: dict[str, str], tasks: list[Json], templates: list[Json]) -> Json:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name, "labels": {keys.MANAGED_BY: f"{keys.MANAGED_BY_VALUE}-probe"}},
        "spec": {
            "entrypoint": "main",
            "activeDeadlineSeconds": _DEADLINE_SECONDS,
            "arguments": {"parameters": [{"name": key, "value": value} for key, value in parameters.items()]},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "templates": [{"name": "main", "dag": {"failFast": False, "tasks": tasks}}, *templates],
        },
    }


def _group(name: str = "group") -> Json:
    return {
        "name": name,
        "template": "leaf",
        "arguments": {"parameters": [{"name": "item", "value": "{{item}}"}]},
    }


def _leaf() -> Json:
    return {"name": "leaf", "inputs": {"parameters": [{"name": "item"}]}, "suspend": {}}


def _pod(image: str, script: str) -> Json:
    return {
        "container": {
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": _RESOURCES,
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        },
        "podSpecPatch": "terminationGracePeriodSeconds: 5",
    }


def _retry(expression: str) -> Json:
    return {"limit": "4", "retryPolicy": "Always", "expression": expression}
