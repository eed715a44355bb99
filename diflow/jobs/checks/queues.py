"""Whether there is the queue that a job names, and whether its namespace may use it, by the administrator's
`queues.yaml`.

Whoever may not read that is told the names of the queues and the rules by what the allocator publishes of them. The
allocator has the last word, as queues come and go. Here a job that would wait for ever is found before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from diflow.common import keys
from diflow.common.errors import InvalidError, UnauthorizedError
from diflow.common.queue_access import QueueAccess, refusal
from diflow.common.words import DEFAULT_QUEUE, meant, named
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP

NOT_LENT: Final = (
    "the job is not preemptible: by the policies fair and fair+goodput it gets no capacity that another queue is "
    "guaranteed and does not use, and may wait beside it; spec.preemptible: true lets it borrow that"
)
_MOST_NAMED: Final = 8


def access(cluster: Cluster, *, home: str, config: str = keys.QUEUES) -> QueueAccess | None:
    """The queues and rules, as far as the user may know them; None if the user may not. `home`: the allocator's
    namespace. Raises InvalidError if the text is wrong."""
    for name, namespace in ((config, home), (keys.PUBLIC_QUEUES, keys.PUBLIC_NAMESPACE)):
        try:
            found = cluster.find(CONFIG_MAP, name, namespace=namespace)
        except UnauthorizedError:
            continue
        text = ((found or {}).get("data") or {}).get(keys.QUEUES_FILE)
        if text or namespace == home:
            return QueueAccess.read(text or "queues: []")
    return None


def check_queue(
    cluster: Cluster,
    queue: str | None,
    *,
    namespace: str,
    priority: str,
    is_preemptible: bool,
    home: str,
    config: str = keys.QUEUES,
    on_note: Callable[[str], object],
) -> None:
    """Check that there is this queue (None: the default one), and that the namespace may use it and the priority.
    `on_note` is told if there are no queues at all, as the name has no effect then, and if the job may not borrow what
    others are guaranteed, as it is not preemptible. A user who may not know the queues,
    or cannot understand them, is told nothing.

    Raises InvalidError that names a similar queue, or the rule.
    """
    try:
        known = access(cluster, home=home, config=config)
    except InvalidError:
        return  # of which the allocator tells the administrator
    if known is None:
        return
    wanted = queue or DEFAULT_QUEUE
    if not known.queues:
        if wanted != DEFAULT_QUEUE:
            on_note(no_effect(wanted))
    elif wanted not in known.queues:
        close = meant(wanted, known.queues)
        hint = f"did you mean {close!r}?" if close else f"there are {named(known.queues, _MOST_NAMED)}"
        raise InvalidError(f"there is no queue {wanted!r}: {hint}", path="spec.queue")
    why = refusal(known.rules, namespace=namespace, queue=wanted, priority=keys.WORKFLOW_PRIORITIES.get(priority, 0))
    if why:
        path = "spec.priority" if "spec.priority" in why else "spec.queue"
        raise InvalidError(f"{why} (`namespaces` in the ConfigMap {config} of {home})", path=path)
    if not is_preemptible and set(known.kept) - {wanted}:
        on_note(NOT_LENT)


def no_effect(queue: str) -> str:
    """What is said of a job that names a queue where none is defined."""
    return f"spec.queue {queue!r} has no effect: the administrator has defined no queues, and all jobs share one"
