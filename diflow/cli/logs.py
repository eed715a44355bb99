"""The command `logs`: the logs of all replicas of a job."""

from __future__ import annotations

import heapq
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diflow.cli.console import colours, note, paint, turn_colour
from diflow.cli.options import Context, JobName, Kubeconfig, Namespace, connect, detaching, resolve, seconds
from diflow.record.argo.failures import MAIN

if TYPE_CHECKING:
    from diflow.kube.api import Cluster
    from diflow.record.status.observe import Attempt, Observation

_RECONNECT_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 10.0
_GONE: Final = "{replica}: its pod is gone, and its logs with it"
# Argo's executor, which starts the user's command, writes a few lines into the same stream.
_ARGO_LINE: Final = re.compile(r"time=\S+ level=\w+ msg=.*\bargo=true")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines to show. `rank` is within the task if one is named, else over the whole job."""

    task: str = ""
    rank: int | None = None
    previous: bool = False
    since: float | None = None
    tail: int | None = None
    grep: re.Pattern[str] | None = None
    timestamps: bool = False

    def takes(self, attempt: Attempt, rank: int) -> bool:
        """Whether to show this replica."""
        if self.task and attempt.task != self.task:
            return False
        if self.rank is None:
            return True
        return self.rank == (attempt.index if self.task else rank)


def logs(
    job: JobName,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job has ended.")] = False,
    task: Annotated[str, typer.Option("--task", "-t", help="Only this task.", show_default=False)] = "",
    rank: Annotated[
        int | None,
        typer.Option("--rank", "-r", min=0, help="Only this rank (with --task: within that task).", show_default=False),
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="The logs from before each replica's last restart.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", help="Only the last 90s, 10m, 2h, ...", show_default=False)
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only so many last lines of each replica.", show_default=False)
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", "-g", help="Only lines that match this expression.", show_default=False)
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="With the time of each line.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Print the logs of all replicas, each line with its replica in front.

    Without -f, lines are in chronological order. With -f, they appear as they are written, including those of replicas
    that start or restart later. Ctrl-C detaches. Of a replica whose work did not begin because an init container, such
    as a node check, failed, the output of that container is printed, also while it waits for its next pod.
    """
    if follow and previous:
        raise typer.BadParameter("--previous is over: there is nothing to follow")
    wanted = Wanted(
        task=task,
        rank=rank,
        previous=previous,
        since=seconds(since, option="--since"),
        tail=tail,
        grep=_expression(grep),
        timestamps=timestamps,
    )
    cluster = connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = resolve(job, cluster)
    with detaching(name, cluster):
        return stream(cluster, name, wanted) if follow else _print_all(cluster, name, wanted)


def _expression(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"--grep is not a regular expression: {error}") from None


class Printer:
    """Prints lines from several threads, each with its replica in front."""

    def __init__(self, wanted: Wanted, width: int) -> None:
        self.wanted = wanted
        self.width = width
        self.lock = threading.Lock()
        self.colours = colours(sys.stdout)

    def line(self, replica: str, rank: int, stamped: str) -> None:
        """Print one line, which starts with its time and a space."""
        time, _, text = stamped.partition(" ")
        if _ARGO_LINE.match(text):
            return
        if self.wanted.grep is not None and not self.wanted.grep.search(text):
            return
        front = paint(f"{replica:<{self.width}} |", turn_colour(rank), on=self.colours)
        shown = f"{time} {text}" if self.wanted.timestamps else text
        with self.lock:
            sys.stdout.write(f"{front} {shown}\n")
            sys.stdout.flush()


def _print_all(cluster: Cluster, name: str, wanted: Wanted) -> int:
    """Print the existing lines in chronological order."""
    from diflow.common.errors import NotFoundError  # noqa: PLC0415
    from diflow.jobs import lookup  # noqa: PLC0415
    from diflow.record.argo.nodes import node_id_of  # noqa: PLC0415
    from diflow.record.status.observe import observe  # noqa: PLC0415

    job = lookup.get(name, cluster=cluster)
    seen = observe(job.workflow, job.pods)
    chosen = [(a, rank) for a, rank in _chosen(seen, wanted)]
    _check_choice(seen, wanted, chosen)
    if not seen.attempts:
        note(f"{name} has no replicas yet, or has none any more: {job.status.message}")
    pods = {node_id_of(pod): pod for pod in job.pods}
    printer = Printer(wanted, max((len(attempt.replica) for attempt, _ in chosen), default=0))
    streams = []
    for attempt, rank in chosen:
        pod = pods.get(attempt.node_id)
        if pod is None:
            note(_GONE.format(replica=attempt.replica))
        elif container := _container(pod):
            _say_which(attempt.replica, container)
            streams.append(_read(cluster, pod, attempt.replica, rank, wanted))
        else:
            note(f"{attempt.replica}: has written nothing yet: {attempt.waiting or attempt.phase}")
            if failed := _failed_before(attempt, seen, pods):
                _say_which(f"{attempt.replica}, its pod before", _container(failed))
                streams.append(_read(cluster, failed, attempt.replica, rank, wanted))
    for _, replica, rank, line in heapq.merge(*streams, key=lambda item: item[0]):
        printer.line(replica, rank, line)
    if wanted.previous and not chosen:
        raise NotFoundError(f"no replica of {name} was started again: there are no previous logs")
    return 0


def _read(
    cluster: Cluster, pod: dict[str, Any], replica: str, rank: int, wanted: Wanted
) -> Iterator[tuple[str, str, int, str]]:
    from diflow.common.errors import DiflowError, NotFoundError  # noqa: PLC0415

    try:
        for line in cluster.logs(
            pod["metadata"]["name"],
            container=_container(pod),
            timestamps=True,
            tail=wanted.tail,
            since_seconds=int(wanted.since) if wanted.since is not None else None,
        ):
            yield (line.partition(" ")[0], replica, rank, line)
    except NotFoundError:
        note(_GONE.format(replica=replica))
    except DiflowError as error:
        note(f"{replica}: {error}")


def _chosen(seen: Observation, wanted: Wanted) -> list[tuple[Attempt, int]]:
    """The attempts to show, each with its rank: the newest of each replica, or the one before it."""
    ranks = _ranks(seen)
    by_replica: dict[tuple[str, int], list[Attempt]] = {}
    for attempt in seen.attempts:
        if attempt.round == seen.live.current:
            by_replica.setdefault((attempt.task, attempt.index), []).append(attempt)
    back = 2 if wanted.previous else 1
    found = [
        (attempts[-back], ranks.get(key, len(ranks))) for key, attempts in by_replica.items() if len(attempts) >= back
    ]
    return sorted((f for f in found if wanted.takes(*f)), key=lambda f: f[1])


def _ranks(seen: Observation) -> dict[tuple[str, int], int]:
    keys = [(task, index) for task in seen.tasks for index in range(seen.live.counts.get(task, 0))]
    return {key: rank for rank, key in enumerate(keys)}


def _check_choice(seen: Observation, wanted: Wanted, chosen: list[tuple[Attempt, int]]) -> None:
    from diflow.common.errors import NotFoundError  # noqa: PLC0415

    if wanted.task and wanted.task not in seen.tasks:
        raise NotFoundError(f"{seen.job.name} has no task {wanted.task}: it has {', '.join(seen.tasks)}")
    count = seen.live.counts.get(wanted.task, 0) if wanted.task else sum(seen.live.counts.values())
    if wanted.rank is not None and wanted.rank >= count and not chosen:
        what = f"{wanted.task} of {seen.job.name}" if wanted.task else seen.job.name
        raise NotFoundError(f"{what} has no rank {wanted.rank}: its ranks are 0 to {count - 1}")


def _container(pod: dict[str, Any]) -> str:
    """The container whose output to print: the main container, or the init container that failed before that could
    start; "" if neither has written anything."""
    status = pod.get("status") or {}
    main = next((c.get("state") or {} for c in status.get("containerStatuses") or [] if c.get("name") == MAIN), {})
    # The kubelet may call a container that it never started terminated, when the pod has ended.
    if "running" in main or (main.get("terminated") or {}).get("startedAt"):
        return MAIN
    for one in status.get("initContainerStatuses") or []:
        if ((one.get("state") or {}).get("terminated") or {}).get("exitCode"):
            return str(one.get("name") or "")
    return MAIN if "terminated" in main else ""


def _failed_before(attempt: Attempt, seen: Observation, pods: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The pod that a replica had before, if an init container failed in it, such as a node check; else None."""
    for before in reversed(seen.attempts):
        pod = pods.get(before.node_id)
        if pod is not None and (before.task, before.index) == (attempt.task, attempt.index) and _container(pod):
            return pod if _container(pod) != MAIN else None
    return None


def _say_which(replica: str, container: str) -> None:
    if container != MAIN:
        note(f"{replica}: its work did not begin, as the init container {container} failed; this is its output:")


def stream(cluster: Cluster, name: str, wanted: Wanted, *, limit: float | None = None) -> int:
    """Print the logs of all replicas until the job has ended. Returns 1 if it failed."""
    from diflow.common.errors import NotFoundError  # noqa: PLC0415
    from diflow.jobs.follow import follow  # noqa: PLC0415
    from diflow.jobs.lookup import get  # noqa: PLC0415

    get(name, cluster=cluster)
    readers = _Readers(cluster, wanted)
    status = None
    for snapshot in follow(cluster, name, seconds=limit):
        if snapshot.workflow is None:
            note(f"job {name} was deleted")
            readers.ended.set()
            return NotFoundError.exit_code
        status = snapshot.status
        readers.read(snapshot.seen, snapshot.pods)
        if status.ended:
            break
    readers.drain()
    if status is None or not status.ended:
        raise TimeoutError(f"job {name} has not ended within the time allowed")
    note(f"{name} {status.phase}: {status.message}")
    return 0 if status.phase == "Succeeded" else 1


class _Readers:
    """The threads that print the logs of a job's pods: one for each pod, once it has output.

    Attempts that were over when the first pods were read are left out.
    """

    def __init__(self, cluster: Cluster, wanted: Wanted) -> None:
        self._cluster, self._wanted = cluster, wanted
        self._printer = Printer(wanted, 0)
        self._threads: dict[str, threading.Thread] = {}
        self._passed: set[str] | None = None
        self.ended = threading.Event()

    def read(self, seen: Observation, pods: Sequence[dict[str, Any]]) -> None:
        """Start to read the pods that are new."""
        from diflow.record.argo.nodes import node_id_of  # noqa: PLC0415

        is_first = self._passed is None
        if self._passed is None:
            _check_choice(seen, self._wanted, _chosen(seen, self._wanted))
            self._passed = {attempt.node_id for attempt in seen.attempts if _is_old(attempt, seen)}
        names = [len(f"{task}-{count - 1}") for task, count in seen.live.counts.items() if count]
        self._printer.width = max([self._printer.width, *names])
        ranks = _ranks(seen)
        by_node = {attempt.node_id: attempt for attempt in seen.attempts if attempt.node_id not in self._passed}
        for pod in pods:
            attempt = by_node.get(node_id_of(pod))
            container = _container(pod)
            if attempt is None or attempt.node_id in self._threads or not container:
                continue
            rank = ranks.get((attempt.task, attempt.index), len(ranks))
            if not self._wanted.takes(attempt, rank):
                continue
            if not is_first and (attempt.tries or attempt.uncounted):
                note(f"{attempt.replica}: a new pod runs")
            _say_which(attempt.replica, container)
            self._start(attempt, pod["metadata"]["name"], container, rank, is_new=not is_first)

    def _start(self, attempt: Attempt, pod: str, container: str, rank: int, *, is_new: bool) -> None:
        reader = threading.Thread(
            target=_follow_pod,
            args=(self._cluster, pod, container, attempt.replica, rank),
            kwargs={"wanted": self._wanted, "printer": self._printer, "ended": self.ended.is_set, "fresh": is_new},
            daemon=True,
        )
        self._threads[attempt.node_id] = reader
        reader.start()

    def drain(self) -> None:
        """The job has ended: wait for the last lines."""
        self.ended.set()
        for reader in self._threads.values():
            reader.join(_DRAIN_SECONDS)


def _is_old(attempt: Attempt, seen: Observation) -> bool:
    """A newer attempt of the same replica exists."""
    newest = seen.latest().get((attempt.task, attempt.index))
    return attempt.round != seen.live.current or (newest is not None and newest.order > attempt.order)


def _follow_pod(
    cluster: Cluster,
    pod: str,
    container: str,
    replica: str,
    rank: int,
    *,
    wanted: Wanted,
    printer: Printer,
    ended: Callable[[], bool],
    fresh: bool,
) -> None:
    """Print the lines of one pod until it ends. After a lost connection it continues at the last printed line."""
    from diflow.common.errors import DiflowError, NotFoundError, UnauthorizedError, UnavailableError  # noqa: PLC0415

    last = ""
    same: set[str] = set()  # lines with the time of the last one, which a new connection repeats
    while True:
        try:
            for line in cluster.logs(
                pod,
                container=container,
                follow=True,
                timestamps=True,
                since_time=last or None,
                since_seconds=int(wanted.since) if wanted.since is not None and not last and not fresh else None,
                tail=wanted.tail if not last and not fresh else None,
            ):
                stamp = line.partition(" ")[0]
                if stamp < last or line in same:
                    continue
                if stamp != last:
                    last, same = stamp, set()
                same.add(line)
                printer.line(replica, rank, line)
            return
        except NotFoundError:
            return
        except (UnauthorizedError, BrokenPipeError) as error:
            note(f"{replica}: {error}")
            return
        except UnavailableError as error:
            if ended():
                return
            note(f"{replica}: {error}; reading on")
            time.sleep(_RECONNECT_SECONDS)
        except DiflowError as error:
            note(f"{replica}: {error}")
            return
