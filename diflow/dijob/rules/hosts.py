"""The limits of the names of a job's hosts, which every container has those of each task of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diflow.common import keys, limits, names
from diflow.common.errors import InvalidError
from diflow.dijob.rules.ditask import Ditask

_OWN_DNS = ("dnsConfig", "dnsPolicy", "hostNetwork")


def are_short(replicas: int, specs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the hosts of a job of so many replicas are listed without their domain, in which its pods then look names
    up: it may have more than MOST_FULL_HOSTS replicas, and each pod has the list. Not with DNS settings of the user's
    own. `specs`: of the pods of its tasks."""
    return replicas > limits.MOST_FULL_HOSTS and not any(name in spec for spec in specs for name in _OWN_DNS)


def check_hosts(
    job: str,
    namespace: str | None,
    tasks: Sequence[tuple[str, int]],
    specs: Iterable[Mapping[str, Any]],
    *,
    short: bool,
    engine: Ditask | None,
) -> None:
    """Raises InvalidError if the names of all hosts are too long. `tasks`: the name and the most replicas of each;
    `specs`: of their pods; `engine`: how its replicas find each other."""
    # An unknown namespace may have a name of the maximum length.
    space = len(namespace) if namespace is not None else keys.LABEL_LIMIT
    domain = 0 if short else 1 + len(names.domain("")) + space
    size = sum(most * (len(names.hostname(job, name, most - 1)) + domain + 1) for name, most in tasks)
    limit("bytes of host names, which every container has in one variable", size, limits.MOST_HOST_BYTES, "spec.tasks")
    if engine is not None:
        if len(tasks) > 1:
            raise InvalidError("is for jobs of one task", path=f"metadata.annotations[{keys.DITASK}]")
        (name, most), what = tasks[0], "bytes of addresses of other replicas, which the last one has in one variable"
        host = names.host(job, "n" * space, name, most - 1)
        limit(what, engine.most_bytes(most, host), limits.MOST_HOST_BYTES, "spec.tasks")
    for i, spec in enumerate(specs if not short and len(tasks) > 1 else ()):
        in_pod = size * (1 + 2 * len(containers(spec)))
        what = "bytes of host names in a pod, twice for each of its containers"
        limit(what, in_pod, limits.MOST_POD_BYTES, f"spec.tasks[{i}].template.spec.containers")


def containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The containers and init containers of a pod's spec."""
    return [*spec["containers"], *(spec.get("initContainers") or ())]


def limit(what: str, number: int, bound: int, path: str) -> None:
    """Raises InvalidError if a job has more of something than is allowed."""
    if number > bound:
        raise InvalidError(f"the job has {number:,} {what}, at most {bound:,} are allowed (docs/limits.md)", path=path)
