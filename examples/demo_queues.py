"""`make demo-queues`: two teams with two users each share 24 GPUs by the policy `fair`, and a picture of it.

One user fills the cluster with preemptible jobs; the others come, one after the other, and each gets what the queue
deserves by shrinking and stopping. At each moment `diflow queue` and `diflow explain` are asked, and what they print is
held against the pods that run. It ends with a table, and with exit code 1 if a queue did not get its share in time, if
a command said what was not so, or if a job lost a retry.

The nodes are fake (kwok answers for them, and runs nothing), all else is real: Kubernetes, Argo, the allocator in its
pods. It uses the cluster of the present kubeconfig if `python3 -m cluster` made it, and asks before it changes anything
there (YES=1 answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.
"""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field

from diflow.cli.main import code_of
from diflow.jobs import events, lookup, submit
from diflow.kube.api import Cluster
from diflow.record.job import record_of
from elastic.film import EVERY_SECONDS, Film, Recorder
from fakestage import empty_nodes, end_work, prepared, queues_in_allocator, set_in_allocator, with_fake_nodes
from shares import cast, checks
from shares.cast import GPUS, MOMENTS, NAMESPACE, NODES, PARTS, RETRIES, Moment, present
from shares.picture import draw
from shares.telling import Retries, Row, moments_table, retries_table
from stage import ROOT, DemoError, exit_code, say

PICTURE = ROOT / "out" / "queues.png"
TRANSCRIPT = ROOT / "out" / "queues.txt"
"""All that the two commands printed."""

_FAIR = {"DIFLOW_ALLOCATOR_POLICY": "fair", "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "10"}
_PATIENCE_SECONDS = 60.0
_PLATEAU_SECONDS = 3.0
_LOOKS = 4
"""Times that the commands are asked at a moment: what they say is judged only if the pods are the same afterwards."""


def main() -> int:
    """Run the demo. Returns 0 if every queue got its share in time and all that was said was so."""
    return exit_code(_run, left=f"what was created stays in the namespace {NAMESPACE}")


def _run() -> int:
    started = time.monotonic()
    target = with_fake_nodes(
        question="install manifests/ and manifests/allocator there, with fake nodes, and for a while with other queues "
        "and the policy `fair`",
        otherwise="this demo changes its queues and its policy, and brings its own fake nodes",
    )
    with prepared(target, NAMESPACE), set_in_allocator(target, _FAIR), queues_in_allocator(target, cast.queues()):
        empty_nodes(target, count=len(NODES), gpus=GPUS)
        play = Play(Cluster.connect())
        say(f"ready after {time.monotonic() - started:.0f} s; the film begins")
        play.run()
        return play.tell()


# --- what -----------------------------------------------------------------------------------------------------------


def diflow(*arguments: str) -> str:
    """What the command prints; run in this process, as starting another one takes longer than what it does."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = code_of(arguments)
    if code != 0:
        raise DemoError(f"diflow {' '.join(arguments)} ended with {code}; see above")
    return out.getvalue()


@dataclass
class Play:
    """The moments, each of which waits until every queue holds what it deserves."""

    cluster: Cluster
    rows: list[Row] = field(default_factory=list)
    retries: list[Retries] = field(default_factory=list)
    _heard: dict[str, int] = field(default_factory=dict)
    """Events of the allocator on each job that were there at the moment before."""
    _printed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.cluster, Film(tuple(PARTS), NODES, GPUS), namespace=NAMESPACE)

    def run(self) -> None:
        """All moments; what was seen is written even if one of them fails."""
        self.recorder.start()
        try:
            time.sleep(2 * EVERY_SECONDS)
            for moment in MOMENTS:
                self.rows.append(self._act(moment))
            self.retries = [self._retries(name) for name in PARTS]
        finally:
            self.recorder.stop()
            PICTURE.parent.mkdir(exist_ok=True)
            TRANSCRIPT.write_text("\n".join(self._printed))
            draw(self.recorder.film, self.rows, PICTURE)

    def tell(self) -> int:
        """Print what came of it. Returns 0 if all is well."""
        print(moments_table(self.rows))
        print(retries_table(self.retries))
        print(f"picture  {PICTURE}\nprinted  {TRANSCRIPT}")
        return 0 if all(row.is_good for row in self.rows) and all(one.is_good for one in self.retries) else 1

    def _act(self, moment: Moment) -> Row:
        before, at = self._running(), self.recorder.now
        self._say(moment.title)
        for part in moment.comes:
            submit.submit(part.job(), cluster=self.cluster)
        for name in moment.ends:
            end_work(self.cluster, name, namespace=NAMESPACE, patience_seconds=_PATIENCE_SECONDS)
        seconds = self._reached(moment, since=at)
        self._say("every queue holds what it deserves" if seconds is not None else "the shares are not held")
        after, told, wrong = self._asked(moment)
        messages = {part.name: self._news(part.name) for part in present(moment)}
        row = Row(moment, at, seconds, before, after, {}, ())
        moved = {name for name, _, _ in row.changes()} | {p.name for p in present(moment) if not after[p.name]}
        for name, was, now in row.changes():
            if now < was and not checks.taken_for(messages[name], moment):
                wrong.append(f"no event of {name} names who got its replicas: {messages[name]}")
        said = {name: checks.reason(text, waits=not after[name]) for name, text in told.items() if name in moved}
        for one in wrong:
            self._say(f"WRONG: {one}")
        time.sleep(_PLATEAU_SECONDS)
        return Row(moment, at, seconds, before, after, said, tuple(wrong))

    def _running(self) -> dict[str, int]:
        frames = self.recorder.film.frames
        return {name: frames[-1].running(name) if frames else 0 for name in PARTS}

    def _reached(self, moment: Moment, *, since: float) -> float | None:
        """Seconds until every queue held what it deserves: the first frame that shows it."""
        while self.recorder.now - since < _PATIENCE_SECONDS:
            for frame in self.recorder.film.frames:
                if frame.at >= since and cast.is_reached(moment, {name: frame.running(name) for name in PARTS}):
                    return frame.at - since
            time.sleep(0.2)
        return None

    def _asked(self, moment: Moment) -> tuple[dict[str, int], dict[str, str], list[str]]:
        """(running replicas by job, what `explain` printed by job, what was said and is not so)."""
        for look in range(_LOOKS):
            self._wait_for_frames(2)
            first = self._running()
            data = json.loads(diflow("queue", "-o", "json"))
            shown = diflow("queue")
            told = {part.name: diflow("explain", part.name, "-n", NAMESPACE) for part in present(moment)}
            self._wait_for_frames(1)
            running = self._running()
            wrong = checks.queues_told(data, moment, running)
            for part in present(moment):
                wrong += checks.job_explained(told[part.name], part, moment, running)
            if running == first and not wrong:
                break
            self._say(f"look {look + 1}: " + ("; ".join(wrong) if running == first else "pods have changed meanwhile"))
        self._printed += [f"=== {moment.title}, at {self.recorder.now:.0f} s", "$ diflow queue", shown]
        self._printed += [f"$ diflow explain {name}\n{text}" for name, text in told.items()]
        return running, told, wrong

    def _wait_for_frames(self, count: int) -> None:
        frames = self.recorder.film.frames
        until = len(frames) + count
        ends = time.monotonic() + _PATIENCE_SECONDS
        while len(frames) < until:
            if time.monotonic() > ends:
                raise DemoError(f"the cluster does not answer: see kubectl get pods -n {NAMESPACE}")
            time.sleep(0.1)

    def _news(self, name: str) -> list[str]:
        """What the allocator's Events say of a job since the moment before."""
        found = events.allocator_events(name, namespace=NAMESPACE, cluster=self.cluster) or []
        known, self._heard[name] = self._heard.get(name, 0), len(found)
        return [f"{event['reason']}: {event['message']}" for event in found[known:]]

    def _retries(self, name: str) -> Retries:
        found = lookup.get(name, namespace=NAMESPACE, cluster=self.cluster)
        state = record_of(found.workflow)
        return Retries(name, found.status.restarts or 0, state.spec.backoff_limit, RETRIES, len(state.live.rounds))

    def _say(self, text: str) -> None:
        say(f"[{self.recorder.now:5.0f} s] {text}")


if __name__ == "__main__":
    sys.exit(main())
