"""Changes of a valid DIJob that the CRD refuses, with the text of each; and those that it accepts."""

from __future__ import annotations

import copy
from typing import Any

from tests.builders import manifest, template

Json = dict[str, Any]

WHAT_CAN = "What can change are suspend, and replicas, minReplicas and maxReplicas of its tasks"


def _rule(**rule: Any) -> Json:
    return {"tasks": [{"name": "a"}], "failurePolicy": {"rules": [{"action": "Count", **rule}]}}


_CODES: Json = {"operator": "In", "values": [3]}
NEW: list[tuple[str, Json, str]] = [
    ("two collectors", {"tasks": [{"type": "collector"}, {"type": "collector"}]},
     "the number of collector task is more than one"),
    ("two learners and two evaluators", {"tasks": [{"type": t} for t in ("learner", "evaluator") * 2]},
     "the number of learner task is more than one"),
    ("two evaluators", {"tasks": [{"type": "evaluator", "name": "a"}, {"type": "evaluator", "name": "b"}]},
     "the number of evaluator task is more than one"),
    ("no name", {"tasks": [{"type": "none"}]}, "none type task has no name"),
    ("an empty name", {"tasks": [{"type": "none", "name": ""}]}, "none type task has no name"),
    ("a name twice", {"tasks": [{"name": "x"}, {"name": "y"}, {"name": "y"}]},
     "there is more than one task named y"),
    ("the name of a type", {"tasks": [{"type": "learner"}, {"name": "learner"}]},
     "there is more than one task named learner"),
    ("another clean-up", {"cleanPodPolicy": "Some"},
     "Invalid CleanPodPolicy Some, expected in [None, Running, All]"),
    ("a name with capitals", {"tasks": [{"name": "Worker"}]}, "the name of a task is part of host names"),
    ("a name that begins with a digit", {"tasks": [{"name": "1st"}]}, "it begins with a letter"),
    ("less than the minimum", {"tasks": [{"name": "a", "replicas": 1, "minReplicas": 2}]},
     "replicas must be from minReplicas to maxReplicas"),
    ("more than the maximum", {"tasks": [{"name": "a", "replicas": 3, "maxReplicas": 2}]},
     "replicas must be from minReplicas to maxReplicas"),
    ("no multiple", {"tasks": [{"name": "a", "replicas": 3, "nodeUnit": 2}]}, "must be multiples of nodeUnit"),
    ("a minimum that is no multiple", {"tasks": [{"name": "a", "replicas": 4, "minReplicas": 1, "nodeUnit": 2}]},
     "must be multiples of nodeUnit"),
    ("a maximum that is no multiple", {"tasks": [{"name": "a", "replicas": 4, "maxReplicas": 7, "nodeUnit": 2}]},
     "must be multiples of nodeUnit"),
    ("too many replicas in all", {"tasks": [{"name": n, "replicas": 1500} for n in "ab"]},
     "at most 2,000 are allowed in all"),
    ("a long host name", {"tasks": [{"name": "t" * 58, "replicas": 11}]}, "shorten the name of the job or of the task"),
    ("no task", {"tasks": []}, "should have at least 1 items"),
    ("too many tasks", {"tasks": [{"name": f"t{i}"} for i in range(41)]}, "must have at most 40 items"),
    ("no replicas", {"tasks": [{"name": "a", "replicas": 0}]}, "should be greater than or equal to 1"),
    ("another type", {"tasks": [{"type": "trainer"}]}, 'supported values: "learner", "collector", "evaluator", "none"'),
    ("another priority", {"priority": "urgent"}, 'supported values: "normal", "high"'),
    ("another action", _rule(action="Retry", onExitCodes=_CODES), 'supported values: "Count", "Ignore", "FailJob"'),
    ("no failure", _rule(onExitCodes={"operator": "In", "values": [0, 1]}), "0 is no failure: In cannot name it"),
    ("a code twice", _rule(onExitCodes={"operator": "In", "values": [3, 3]}), "Duplicate value"),
    ("a large code", _rule(onExitCodes={"operator": "In", "values": [256]}), "should be less than or equal to 255"),
    ("a rule of two kinds", _rule(onExitCodes=_CODES, onPodConditions=[{"type": "DisruptionTarget"}]),
     "must have onExitCodes or onPodConditions"),
    ("a rule of no kind", _rule(), "must have onExitCodes or onPodConditions"),
    ("more memory after an eviction", _rule(action="MoreMemory", onPodConditions=[{"type": "DisruptionTarget"}]),
     "more memory does not help a pod that was evicted"),
    ("a short deadline", {"tasks": [{"name": "a"}], "health": {"progressSeconds": 59}},
     "must be 0, which is no limit, or at least 60"),
    ("another condition", _rule(onPodConditions=[{"type": "Ready"}]), 'supported values: "DisruptionTarget"'),
]  # fmt: skip
"""(what, fields of the spec, a part of the refusal). Tasks get a template."""

CHANGED: list[tuple[str, Json, str]] = [
    ("the priority", {"priority": "high"}, WHAT_CAN),
    ("preemptible", {"preemptible": True}, WHAT_CAN),
    ("the limit of restarts", {"backoffLimit": 7}, WHAT_CAN),
    ("the clean-up", {"cleanPodPolicy": "All"}, WHAT_CAN),
    ("the queue", {"queue": "other"}, WHAT_CAN),
    ("the volumes", {"volumes": [{"name": "v", "emptyDir": {}}]}, WHAT_CAN),
    ("another task", {"tasks": [{"type": "learner"}, {"name": "more"}]}, WHAT_CAN),
    ("another name of a task", {"tasks": [{"type": "learner", "name": "trainer"}]}, WHAT_CAN),
    ("another unit of a task", {"tasks": [{"type": "learner", "replicas": 2, "nodeUnit": 2}]}, WHAT_CAN),
    ("another type of a task", {"tasks": [{"type": "collector"}]}, WHAT_CAN),
    ("another image", {"tasks": [{"type": "learner", "template": template(container={"image": "other:1"})}]}, WHAT_CAN),
    ("another failure policy", {"failurePolicy": {}}, WHAT_CAN),
    ("another maximum of memory", {"tasks": [{"type": "learner", "maxMemory": "8Gi"}]}, WHAT_CAN),
    ("a template beside the tasks", {"template": template()}, WHAT_CAN),
    ("a coordinator beside the tasks", {"coordinator": {"template": template()}}, WHAT_CAN),
]  # fmt: skip
"""(what, fields of the spec after the change, a part of the refusal)."""

SCALED: list[Json] = [
    {"type": "learner", "replicas": 5},
    {"type": "learner", "replicas": 2, "minReplicas": 1, "maxReplicas": 4},
]
"""Tasks after a change that is accepted."""


def dijob(name: str, fields: Json) -> Json:
    """A DIJob with these fields; its tasks have a template."""
    made = manifest()
    made["metadata"]["name"] = name
    made["spec"] |= copy.deepcopy(fields)
    for task in made["spec"]["tasks"]:
        task.setdefault("template", template())
    return made
