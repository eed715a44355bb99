"""Runs in pods of a v1alpha1 job: DI-engine's `CommCoordinator`, unchanged, or a slave of DI-engine's protocol in the
place of a collector or learner.

Arguments: the folder with DI-engine's code, and `coordinator` or `replica`. It knows the server, its own name and its
port from the variables that DI-orchestrator sets. A test asks for more by files in /tmp: a replica fails on `crash`, a
coordinator deletes a collector on `fewer`, asks for one on `more`, and ends on `done`. It prints the replicas to which
it is connected whenever they change.
"""

import importlib
import json
import logging
import os
import signal
import sys
import time
import types
from pathlib import Path

FILES = Path("/tmp")
PACKAGES = ("ding", "ding.interaction", "ding.worker", "ding.worker.coordinator", "ding.utils")


class Config(dict):  # type: ignore[type-arg]
    """A mapping with attributes, as DI-engine reads its settings."""

    __getattr__ = dict.__getitem__


def main() -> None:
    folder, what = sys.argv[1:]
    # Packages without their own `__init__`, which would import all of DI-engine.
    for package in PACKAGES:
        module = types.ModuleType(package)
        module.__path__ = [str(Path(folder, *package.split(".")))]
        sys.modules[package] = module
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    if what == "coordinator":
        coordinate()
    else:
        serve()


def serve() -> None:
    slave = importlib.import_module("ding.interaction.slave").Slave

    class Replica(slave):  # type: ignore[misc, valid-type]
        def _process_task(self, task: dict[str, str]) -> dict[str, str]:
            return {"asked": task["name"]}

    port = os.environ.get("COLLECTOR_PORT") or os.environ["LEARNER_PORT"]
    Replica("0.0.0.0", int(port)).start()
    while not (FILES / "crash").exists():
        time.sleep(0.2)
    os._exit(3)


def coordinate() -> None:
    helper = types.ModuleType("ding.utils.default_helper")
    helper.one_time_warning = lambda *_: None  # type: ignore[attr-defined]
    sys.modules[helper.__name__] = helper
    utils = sys.modules["ding.utils"]
    locks = importlib.import_module("ding.utils.lock_helper")
    kubernetes = importlib.import_module("ding.utils.k8s_helper")
    utils.LockContext, utils.LockContextType = locks.LockContext, locks.LockContextType  # type: ignore[attr-defined]
    utils.get_operator_server_kwargs = kubernetes.get_operator_server_kwargs  # type: ignore[attr-defined]
    interaction = sys.modules["ding.interaction"]
    interaction.Master = importlib.import_module("ding.interaction.master").Master  # type: ignore[attr-defined]
    each = {"replicas": 2, "cpus": "0.1", "memory": "128Mi"}
    settings = Config(
        operator_server=Config(
            system_addr=os.environ["SYSTEM_ADDR"],
            init_replicas_request={"collectors": each, "learners": {**each, "gpus": "0"}},
            collector_target_num=2,
            learner_target_num=2,
        ),
        host="0.0.0.0",
        port=int(os.environ["COORDINATOR_PORT"]),
        learner={},
        collector={},
    )
    calls = dict.fromkeys(("deal_with_increase_collector", "deal_with_decrease_collector"), lambda: None)
    coordinator = importlib.import_module("ding.worker.coordinator.comm_coordinator").CommCoordinator(
        settings, calls, logging.getLogger("coordinator")
    )
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    coordinator.start()
    before = None
    while not (FILES / "done").exists():
        connected = [sorted(coordinator._connection_collector), sorted(coordinator._connection_learner)]
        if connected != before:
            before = connected
            sys.stdout.write(f"{json.dumps(connected)}\n")
            sys.stdout.flush()
        if (FILES / "fewer").exists():
            (FILES / "fewer").unlink()
            coordinator._operator_server.delete_replicas(n_collectors=1, n_learners=0)
        if (FILES / "more").exists():
            (FILES / "more").unlink()
            coordinator._operator_server.post_replicas({"collectors": {**each, "replicas": 1}})
        time.sleep(0.2)
    os._exit(0)


main()
