"""Runs in the environment of `dingine`: DI-engine's `CommCoordinator`, with the server, and with slaves of DI-engine's
own protocol in the place of the replicas' pods.

Arguments: the folder with DI-engine's code, the server as `host:port`. It prints two JSON texts: the replicas to which
the coordinator is connected when its pipeline has started, and those after it has reported a collector as failed. The
names of replicas resolve to addresses of this machine, one for each, where a slave begins to listen when its name is
looked up.
"""

import importlib
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path

PATIENCE_SECONDS = 60.0
NUMBERS = itertools.count(2)
ADDRESSES: dict[str, str] = {}
LOOKED_UP = threading.Lock()
RESOLVE = socket.getaddrinfo


class Config(dict):  # type: ignore[type-arg]
    """A mapping with attributes, as DI-engine reads its settings."""

    __getattr__ = dict.__getitem__


def main() -> None:
    folder, url = sys.argv[1:]
    packages = ("ding", "ding.interaction", "ding.worker", "ding.worker.coordinator", "ding.utils")
    for package in packages:
        module = types.ModuleType(package)
        module.__path__ = [str(Path(folder, *package.split(".")))]
        sys.modules[package] = module
    helper = types.ModuleType("ding.utils.default_helper")
    helper.one_time_warning = _nothing  # type: ignore[attr-defined]
    sys.modules[helper.__name__] = helper
    utils = sys.modules["ding.utils"]
    locks = importlib.import_module("ding.utils.lock_helper")
    kubernetes = importlib.import_module("ding.utils.k8s_helper")
    utils.LockContext, utils.LockContextType = locks.LockContext, locks.LockContextType  # type: ignore[attr-defined]
    utils.get_operator_server_kwargs = kubernetes.get_operator_server_kwargs  # type: ignore[attr-defined]
    interaction = sys.modules["ding.interaction"]
    interaction.Master = importlib.import_module("ding.interaction.master").Master  # type: ignore[attr-defined]
    # This machine may have no way out, by which DI-engine finds its own address.
    importlib.import_module("ding.interaction.master.master").get_host_ip = lambda: "127.0.0.1"  # type: ignore[attr-defined]
    slave = importlib.import_module("ding.interaction.slave").Slave

    class Replica(slave):  # type: ignore[misc, valid-type]
        def _process_task(self, task: dict[str, str]) -> dict[str, str]:
            return {"asked": task["name"]}

    def resolve(host: str, port: int, *rest: object, **more: object) -> object:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith(".di.default"):
            return RESOLVE(host, port, *rest, **more)  # type: ignore[arg-type]
        with LOOKED_UP:
            if name not in ADDRESSES:
                ADDRESSES[name] = f"127.0.3.{next(NUMBERS)}"
                Replica(ADDRESSES[name], int(port)).start()
        return RESOLVE(ADDRESSES[name], port, *rest, **more)  # type: ignore[arg-type]

    socket.getaddrinfo = resolve  # type: ignore[assignment]
    asked = {
        "collectors": {"replicas": 2, "cpus": "0.5", "memory": "200Mi"},
        "learners": {"replicas": 2, "gpus": "0", "cpus": "0.5", "memory": "200Mi"},
    }
    settings = Config(
        operator_server=Config(
            system_addr=url,
            api_version="/v1alpha1",
            init_replicas_request=asked,
            collector_target_num=2,
            learner_target_num=2,
        ),
        host="127.0.0.1",
        port=_free_port(),
        learner={},
        collector={},
    )
    calls = {"deal_with_increase_collector": _nothing, "deal_with_decrease_collector": _nothing}
    coordinator = importlib.import_module("ding.worker.coordinator.comm_coordinator").CommCoordinator(
        settings, calls, logging.getLogger("coordinator")
    )
    coordinator.start()
    connected = (coordinator._connection_collector, coordinator._connection_learner)
    until(lambda: [len(some) for some in connected] == [2, 2])
    say(connected)
    lost = sorted(coordinator._connection_collector)[0]
    coordinator._failed_collector_conn.add(lost)  # as it does when it cannot connect to one
    until(lambda: lost not in connected[0] and [len(some) for some in connected] == [2, 2])
    say(connected)
    os._exit(0)


def say(connected: Iterable[Iterable[str]]) -> None:
    sys.stdout.write(f"{json.dumps([sorted(some) for some in connected])}\n")
    sys.stdout.flush()


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > ends:
            sys.exit("it took too long")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _nothing() -> None:
    pass


main()
