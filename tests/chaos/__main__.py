"""`python -m tests.chaos [--seed N] [--minutes M] [--policy NAME] [--argo VERSION] [--nodes 2]`.

Exit code 1 if something is wrong. Works on the cluster of DIFLOW_TEST_KUBECONFIG, or on a new one that is deleted at
the end.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.chaos.known import GPUS
from tests.chaos.operations import Operations
from tests.chaos.second import SecondNode, give, second_node
from tests.chaos.watching import Watcher, judge
from tests.clusters import ROOT, cluster, wait_until
from tests.e2e.allocators import Daemon
from tests.e2e.live import ENDED, Live
from tests.e2e.test_crd import install
from tests.e2e.test_dijobs import controller

ENDED_SECONDS = 400.0
"""How long the jobs may take to end after the last operation."""
CLEANED_SECONDS = 20.0


def main() -> int:
    """Run the operations, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Disturb the jobs of a real cluster.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--policy", default="fit", help="the allocator's (default: %(default)s)")
    parser.add_argument("--argo", default="4.0.7", help="the version of Argo Workflows (default: %(default)s)")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="2: the second one fails (default: 1)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="diflow-chaos-"))
    _print(f"logs: {folder}")
    with cluster(options.argo) as found, found.namespace("chaos") as namespace:
        live = Live(found, namespace)
        install(live)
        live.kubectl("apply", "-k", str(ROOT / "manifests" / "jobs"))
        with ExitStack() as nodes:
            names = [live.node()["metadata"]["name"]]
            if options.nodes > 1:
                names.append(nodes.enter_context(second_node(live, names[0])))
            nodes.enter_context(_gpus(live, names))
            return _run(live, folder, names[1:], seed=options.seed, seconds=60 * options.minutes, policy=options.policy)


@contextmanager
def _gpus(live: Live, nodes: list[str]) -> Iterator[None]:
    """The nodes have GPUs, and take pods at the end, whatever interrupted the run."""
    for node in nodes:
        give(live, node, str(GPUS // len(nodes)))
    try:
        yield
    finally:
        for node in nodes:
            give(live, node, None)
            live.cluster.kubectl("uncordon", node)


def _run(live: Live, folder: Path, others: list[str], *, seed: int, seconds: float, policy: str) -> int:
    began = time.monotonic()
    complaints: list[str] = []

    def now() -> float:
        return time.monotonic() - began

    def say(text: str) -> None:
        _print(f"{now():7.1f} {text}")

    def complain(text: str) -> None:
        complaints.append(text)
        say(f"WRONG: {text}")

    allocator = Daemon(live.cluster, live.namespace, folder / "allocator.log", {"DIFLOW_ALLOCATOR_POLICY": policy})
    allocator.start()
    try:
        allocator.until_leading()
        with controller(live, folder / "controller.log") as objects:
            chance = random.Random(seed)
            second = SecondNode(live, others[0], GPUS // 2, chance, now, say) if others else None
            run = Operations(live, allocator, objects, folder, chance, now, say, complain, second)
            with Watcher(live, run.jobs, now, complain, second), _mended(second):
                while now() < seconds:
                    run.step()
                    time.sleep(chance.choice([0.1, 0.5, 1.0, 2.0]))
                say("no more operations")
                _mend(second)
                _until_ended(run)
            time.sleep(CLEANED_SECONDS)
            judge(live, run.jobs, complain)
            for name, process in (("allocator", allocator.process), ("controller", objects.process)):
                if process is None or process.poll() is not None:
                    complain(f"the {name} has ended")
    finally:
        allocator.stop()
    for log in ("allocator.log", "controller.log"):
        if "Traceback" in (folder / log).read_text():
            complain(f"a traceback in {folder / log}")
    _print("\n  ".join([f"{len(run.jobs)} jobs, {len(complaints)} faults", *complaints]))
    return 1 if complaints else 0


@contextmanager
def _mended(second: SecondNode | None) -> Iterator[None]:
    """Whatever interrupted the run, the second node is left as it was."""
    try:
        yield
    finally:
        _mend(second)


def _mend(second: SecondNode | None) -> None:
    if second is not None:
        second.end()
        wait_until("the second node is whole again", second.is_whole, timeout=120)


def _until_ended(run: Operations) -> None:
    """Resume what is suspended, repair what only users repair, and wait until all jobs have ended."""
    for name, job in run.jobs.items():
        if job.suspended and not job.deleted:
            run.end_of_suspension(name)
        if not job.deleted and run.phase(name) not in ENDED:
            run.follow_advice(name)

    def left() -> list[str]:
        return [name for name, job in run.jobs.items() if not job.deleted and run.phase(name) not in ENDED]

    try:
        wait_until("all jobs have ended", lambda: not left(), timeout=ENDED_SECONDS, every=3.0)
    except AssertionError:
        for name in left():
            run.complain(f"{name} has not ended:\n{run.live.diflow('describe', name).out}")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
