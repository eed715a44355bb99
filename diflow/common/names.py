"""Validates the names of jobs and tasks, and builds the names of a job's hosts.

A job's name becomes the Workflow's name, part of each pod's hostname (a DNS label of at most 63 characters) and a
label's value. A task's name becomes part of a hostname, of an environment variable and of an
Argo DAG task's name, which may not begin with a digit.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_APPLICATION_NAME

UNKNOWN_POOL: Final = 0
"""Instead of the number of a pool: the one in which the job runs now."""
_LARGEST_POOL_NUMBER: Final = 10**9
LABEL_PATTERN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""DNS labels, as a regular expression."""
_LABEL: Final = re.compile(LABEL_PATTERN)
_APPLICATION: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?")
TASK_PATTERN: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
"""The names of tasks, as a regular expression of Python and of RE2. `check_task` has the messages."""
_RESERVED_TASKS: Final = frozenset(
    {
        keys.TEMPLATE_JOB,
        keys.TEMPLATE_ROUND,
        keys.TEMPLATE_GIVE_UP,
        keys.TEMPLATE_SUPERSEDED,
    }
)


def hostname(job: str, task: str, index: int | str) -> str:
    """Host name of replica `index` of `task`, by which the other replicas reach it."""
    return f"{job}-{task}-{index}"


def host(job: str, namespace: str, task: str, index: int | str) -> str:
    """Full host name of replica `index` of `task`."""
    return f"{hostname(job, task, index)}.{domain(namespace)}"


def domain(namespace: str) -> str:
    """The domain of the hosts of a namespace."""
    return f"{keys.SERVICE}.{namespace}.svc.cluster.local"


def nodes_variable(task: str) -> str:
    """Name of the environment variable that lists the hosts of one task."""
    return f"DI_{task.upper().replace('-', '_')}_NODES"


def audience(namespace: str, job: str) -> str:
    """The audience of the tokens of a job's pods: the REST API, for this job only."""
    return f"{keys.IDENTITY_AUDIENCE}/{namespace}/{job}"


@lru_cache(maxsize=1024)
def pool_number(name: str) -> int:
    """The number of the pool of nodes of this name, from 1 to 10^9, by which the rows of a report name it.

    It follows from the name alone: a report is read long after the pools of the cluster have changed, and an index
    would then mean another pool.
    """
    return 1 + int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % _LARGEST_POOL_NUMBER


def is_application(name: object) -> bool:
    """Whether this is the name of an application, as the annotation `diflow/application` has it."""
    return isinstance(name, str) and len(name) <= MOST_APPLICATION_NAME and _APPLICATION.fullmatch(name) is not None


def is_label(name: str) -> bool:
    """Whether `name` is a DNS label, as the names of jobs and namespaces are."""
    return len(name) <= keys.LABEL_LIMIT and _LABEL.fullmatch(name) is not None


def check_label(name: str, *, what: str, path: str) -> None:
    """Check that `name` is a DNS label. Raises InvalidError with the rule that it violates."""
    if not name:
        raise InvalidError(f"{what} is empty: give it a name", path=path)
    if len(name) > keys.LABEL_LIMIT:
        raise InvalidError(f"{what} has {len(name)} characters, at most {keys.LABEL_LIMIT} are allowed", path=path)
    if _LABEL.fullmatch(name):
        return
    hint = _suggest(name)
    suggestion = f"; {hint!r} would do" if hint else ""
    if any(c.isupper() for c in name):
        reason = "has capital letters"
    elif "_" in name:
        reason = "has an underscore"
    elif "." in name:
        reason = "has a dot"
    elif name[0] == "-" or name[-1] == "-":
        reason = "begins or ends with a dash"
    else:
        reason = "has a character that host names do not allow"
    raise InvalidError(
        f"{what} {name!r} {reason}: use lower-case letters, digits and dashes, as in a host name{suggestion}", path=path
    )


def check_job(name: str) -> None:
    """Check a job's name."""
    check_label(name, what="the job's name", path="metadata.name")


def check_task(name: str, *, path: str) -> None:
    """Check a task's name."""
    check_label(name, what="the task's name", path=path)
    if name[0].isdigit():
        raise InvalidError(
            f"the task's name {name!r} begins with a digit, which Argo does not allow in a DAG: begin with a letter",
            path=path,
        )
    if name in _RESERVED_TASKS:
        raise InvalidError(f"the task's name {name!r} is used by diflow itself: choose another", path=path)


def check_hostname(job: str, task: str, replicas: int, *, path: str) -> None:
    """Check that the host name of the task's last replica fits a DNS label."""
    longest = hostname(job, task, replicas - 1)
    if len(longest) > keys.LABEL_LIMIT:
        over = len(longest) - keys.LABEL_LIMIT
        raise InvalidError(
            f"the host name {longest!r} has {len(longest)} characters, at most {keys.LABEL_LIMIT} are allowed: "
            f"shorten the job's or the task's name by {over}",
            path=path,
        )


def _suggest(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: keys.LABEL_LIMIT]
