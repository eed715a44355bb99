"""Runs in the environment of `dingine`: calls DI-engine's `OperatorServer`, and prints what it returns.

Arguments: the folder with DI-engine's code, the server as `host:port`, the name of the coordinator's pod, and calls,
each a JSON list of a method and its keyword arguments.
"""

import importlib
import json
import sys
import types
from pathlib import Path


def main() -> None:
    folder, url, name, *calls = sys.argv[1:]
    # Packages without their own `__init__`, which would import all of DI-engine.
    for package in ("ding", "ding.interaction", "ding.worker", "ding.worker.coordinator"):
        module = types.ModuleType(package)
        module.__path__ = [str(Path(folder, *package.split(".")))]
        sys.modules[package] = module
    client = importlib.import_module("ding.worker.coordinator.operator_server").OperatorServer

    host, port = url.split(":")
    server = client(host, int(port), api_version="/v1alpha1", namespace="default", name=name)
    server.set_worker_type("aggregator" if "-aggregator-" in name else "coordinator")
    for one in calls:
        method, arguments = json.loads(one)
        try:
            found = getattr(server, method)(**arguments)
        except Exception as error:
            found = {"error": type(error).__name__}
        sys.stdout.write(f"{json.dumps(found)}\n")


main()
