"""A process that leads and writes, for a test that stops it: `python -m tests.kube.holder URL`.

Each round it reads an object, checks that it leads, asks the server for its version (the test holds that answer back to
stop the process between the check and the write), and writes. It ends with 3 when it has lost its leadership.
"""

from __future__ import annotations

import sys
import threading
import time

import urllib3

from diflow.common.errors import ConflictError, LostLeadershipError
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD
from diflow.kube.leader_election import Elector, Times
from diflow.kube.refusals import Target


def main(url: str) -> int:
    cluster = Cluster(Target(url), transport=urllib3.PoolManager(maxsize=4), read_seconds=100)
    elector = Elector(cluster, name="diflow-allocator", namespace="default", identity="holder", times=Times(8, 0.5))
    elector.acquire(threading.Event())
    while True:
        pod = cluster.get(POD, "a")
        try:
            epoch = elector.check()
            cluster.version()
            cluster.replace(POD, "a", {**pod, "by": "holder", "epoch": epoch})
        except LostLeadershipError:
            return 3
        except ConflictError:
            continue
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
