"""Starts a cluster, reports its health, and removes it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import build, cgroups, config, namespace, network, pki, seed
from cluster.components import components, log_file
from cluster.errors import ClusterError, MissingError, UsageError
from cluster.kube import Kubectl
from cluster.parts import ARGO, CONTROL_PLANES, COREDNS, ETCD, KWOK, NODE, Versions
from cluster.paths import PACKAGE, REPOSITORY, ClusterPaths, cluster_paths, state_root
from cluster.plan import Plan
from cluster.progress import Progress
from cluster.supervisor import write_atomically

_READY_SECONDS = 300.0
_STOP_SECONDS = 60.0
# The supervisor writes every two seconds; with an older status it hangs or gets no CPU.
_STALE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a cluster: `phase` is Running, Starting, Broken or Absent."""

    phase: str
    problems: tuple[str, ...] = ()


def require_root() -> None:
    """Raises UsageError without root, which namespaces, mounts and control groups need."""
    if os.geteuid() != 0:
        raise UsageError("a cluster needs root (it makes namespaces, mounts and control groups): run this with sudo")


@contextmanager
def held(name: str) -> Iterator[None]:
    """One `up` or `down` of a cluster at a time. The lock file is removed with the cluster."""
    root = state_root()
    path = root / f".{name}.lock"
    while True:
        root.mkdir(parents=True, exist_ok=True)
        try:
            handle = path.open("w")
        except FileNotFoundError:
            continue  # Another `down` has just removed the empty folder.
        fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
            break
        handle.close()  # Its holder removed the file while we waited.
    try:
        yield
    finally:
        if not (root / name).exists():
            path.unlink(missing_ok=True)
        handle.close()
        with suppress(OSError):
            root.rmdir()  # Only when nothing is left in it.


def names() -> list[str]:
    """The clusters on this machine, running or broken."""
    root = state_root()
    if not root.is_dir():
        return []
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def load(name: str) -> Plan:
    """The plan of an existing cluster."""
    paths = cluster_paths(name)
    try:
        return Plan.from_json(paths.state.read_text())
    except FileNotFoundError:
        raise MissingError(f"there is no cluster {name!r}: python3 -m cluster up --name {name} makes it") from None
    except (ValueError, TypeError) as error:
        raise ClusterError(f"{paths.state} cannot be read ({error}): python3 -m cluster down --name {name}") from error


def health(name: str) -> Health:
    """The health that the supervisor reports, or that its absence implies."""
    paths = cluster_paths(name)
    if not paths.root.exists():
        return Health("Absent")
    if _init_pid(paths) is None:
        return Health("Broken", (f"its processes are gone ({why_stopped(name)}); logs are in {paths.logs}",))
    status = _status(paths)
    if status is None:
        return Health("Starting")
    if time.time() - status["at"] > _STALE_SECONDS:
        return Health("Broken", (f"its supervisor has been silent for long; see {paths.logs}/supervisor.log",))
    parts: dict[str, Any] = status["components"]
    problems = tuple(f"{n} {p['problem']}; see {p['log']}" for n, p in parts.items() if p["problem"])
    if problems:
        return Health("Broken", problems)
    waiting = tuple(f"{n} is not ready yet; see {p['log']}" for n, p in parts.items() if not p["healthy"])
    return Health("Starting", waiting) if waiting else Health("Running")


def is_stopped(name: str) -> bool:
    """Whether the cluster is there and its processes are gone, as after a restart of the machine."""
    paths = cluster_paths(name)
    return paths.root.exists() and _init_pid(paths) is None


def why_stopped(name: str) -> str:
    """Why there are none of its processes, as far as it is known."""
    last = _last_start(cluster_paths(name))
    if last is None:
        return "they never started"
    if last.is_of_another_machine():
        return "they were another machine's"
    return "the machine was restarted" if last.boot not in ("", _boot()) else "they were ended"


def is_of_another_machine(name: str) -> bool:
    """Whether a machine that shares this folder of clusters started it."""
    last = _last_start(cluster_paths(name))
    return last is not None and last.is_of_another_machine()


def was_started(name: str) -> bool:
    """Whether it has ever had processes."""
    return _last_start(cluster_paths(name)) is not None


def files_in_volumes(name: str) -> list[Path]:
    """The files in the volumes of its pods."""
    return [path for path in cluster_paths(name).volumes.rglob("*") if not path.is_dir()]


def component_status(name: str) -> dict[str, Any]:
    """The supervisor's last status of each component."""
    status = _status(cluster_paths(name))
    return dict(status["components"]) if status else {}


def start(name: str, versions: Versions, images: Path, progress: Progress) -> Plan:
    """Creates a cluster and waits until all its servers are healthy. The caller holds its lock; binaries are built, and
    `images` is a containerd with the large images (seed.py).
    """
    paths = cluster_paths(name)
    programs = {"etcd": str(build.binary(ETCD, "etcd"))}
    for part in (NODE, CONTROL_PLANES[versions.kubernetes]):
        programs |= {p.name: str(build.binary(part, p.name)) for p in part.programs}
    programs |= {"coredns": str(build.binary(COREDNS, "coredns")), "kwok": str(build.binary(KWOK, "kwok"))}
    if versions.argo != "none":
        programs["argo"] = str(build.binary(ARGO[versions.argo], "argo"))
    with held(".addresses"):
        used = network.host_networks()
        used += [Plan.from_json(cluster_paths(n).state.read_text()).addresses.block for n in names() if _planned(n)]
        addresses = network.choose(name, used)
        plan = Plan(
            name=name,
            root=str(paths.root),
            block=str(addresses.block),
            argo=versions.argo,
            programs=programs,
            kubernetes=versions.kubernetes,
        )
        for folder in (paths.logs, paths.wanted, paths.volumes, *(paths.root / f for f in _FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(paths.state, plan.to_json())
    pki.create(paths.pki, pki.certificates(plan.node, addresses.node_ip, addresses.api_service_ip))
    config.write_all(plan)
    write_atomically(paths.root / "images.json", json.dumps(seed.plant(images, paths.root / "containerd")) + "\n")
    progress(f"{name}: addresses {addresses.block}, keys and configuration written")
    _launch(plan)
    settle(plan, progress)
    return plan


def resume(plan: Plan, progress: Progress) -> None:
    """Starts a stopped cluster again with all that it held. The caller holds its lock.

    Raises ClusterError if it cannot be started as it was. What it needs is then still there.
    """
    if absent := [program for program in plan.programs.values() if not Path(program).exists()]:
        raise ClusterError(f"{', '.join(absent)} is not in the cache any more")
    _clear(plan.name)
    if any(plan.addresses.block.overlaps(network) for network in network.host_networks()):
        raise ClusterError(f"something else on this machine has addresses of {plan.addresses.block} now")
    plan.paths.status.unlink(missing_ok=True)  # of the processes that are gone
    _launch(plan)
    settle(plan, progress)


def settle(plan: Plan, progress: Progress) -> None:
    """Waits until all servers of a launched cluster are healthy; also after an interrupted `up`."""
    seen = _await_health(plan, {"etcd", "kube-apiserver"}, set(), progress)
    # CoreDNS is not healthy until it may list Services, so this comes first.
    kubectl(plan)("apply", "--server-side", "-f", str(PACKAGE / "manifests" / "base.yaml"))
    _await_health(plan, {c.name for c in components(plan) if not c.optional}, seen, progress)


def kubectl(plan: Plan) -> Kubectl:
    """The administrator's kubectl of one cluster."""
    return Kubectl(Path(plan.programs["kubectl"]), plan.paths.kubeconfig)


_FOLDERS = ("tmp", "varlog", "cni-cache")


def _planned(name: str) -> bool:
    return cluster_paths(name).state.exists()


def _launch(plan: Plan) -> None:
    """Starts the supervisor in namespaces of its own and connects them to the host."""
    for point in namespace.MOUNT_POINTS:
        point.mkdir(parents=True, exist_ok=True)
    groups = cgroups.create(plan.name)
    hierarchies = [[str(h.mount), h.options] for h in cgroups.hierarchies()]
    # A shell first moves itself into the control groups: they become the roots of the cgroup namespace.
    enter = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
    command = ["sh", "-c", enter, "sh", *(str(group / "cgroup.procs") for group in groups), "--"]
    command += ["unshare", "--mount", "--propagation", "private", "--net", "--ipc", "--uts", "--cgroup"]
    command += ["--pid", "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-m", "cluster.supervisor", plan.root]
    with (plan.paths.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_clean_environment(),
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(hierarchies).encode())
    process.stdin.close()
    init = _wait_for_init(process)
    write_atomically(plan.paths.root / "init", f"{init} {_start_time(init)} {_boot()} {_machine()}\n")
    network.join(plan.name, plan.addresses, init)


def _clean_environment() -> dict[str, str]:
    # The servers must not inherit a proxy or the user's kubeconfig.
    unwanted = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "kubeconfig")
    kept = {k: v for k, v in os.environ.items() if k.lower() not in unwanted}
    kept["PATH"] = kept.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"}


def _wait_for_init(process: subprocess.Popen[bytes]) -> int:
    """The host's PID of the first process in the new namespaces."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = children.read_text().split() if children.exists() else []
        if found:
            return int(found[0])
        if process.poll() is not None:
            break
        time.sleep(0.005)
    raise ClusterError("the namespaces of the cluster could not be made: see supervisor.log in its log folder")


def _await_health(plan: Plan, expected: set[str], seen: set[str], progress: Progress) -> set[str]:
    """Waits for the components `expected`; reports each one that is not in `seen`, and returns all ready ones."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        for component, status in component_status(plan.name).items():
            if status["healthy"] and component not in seen:
                seen = seen | {component}
                progress(f"{plan.name}: {component} is ready")
        if expected <= seen:
            return seen
        now = health(plan.name)
        if now.phase == "Broken":
            raise ClusterError(f"cluster {plan.name!r} did not start: {'; '.join(now.problems)}")
        if time.monotonic() > deadline:
            missing = sorted(expected - seen)
            logs = ", ".join(str(log_file(plan, m)) for m in missing)
            raise ClusterError(
                f"cluster {plan.name!r}: {', '.join(missing)} not ready in {_READY_SECONDS:.0f} s; {logs}"
            )
        time.sleep(0.05)


def stop(name: str, progress: Progress) -> None:
    """Stops a cluster and removes all of it, also a partial or broken one. The caller holds its lock."""
    paths = cluster_paths(name)
    init = _init_pid(paths)
    if init is not None:
        # When the first process of a PID namespace is killed, the kernel kills all others in it, including containers.
        os.kill(init, signal.SIGKILL)
        deadline = time.monotonic() + _STOP_SECONDS
        while Path(f"/proc/{init}").exists() and _init_pid(paths) is not None:
            if time.monotonic() > deadline:
                raise ClusterError(f"process {init} of cluster {name!r} does not end; something holds it in the kernel")
            time.sleep(0.02)
    _clear(name)
    shutil.rmtree(paths.root, ignore_errors=False)
    progress(f"{name}: gone")


def _clear(name: str) -> None:
    """Removes what a cluster has outside its folder. Its first process has ended."""
    for pid in cgroups.processes(name):
        # Only if `up` was interrupted before it knew the first process.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    network.unjoin(name)
    left = cgroups.remove(name)
    if left:
        raise ClusterError(f"control groups of cluster {name!r} are still in use: {', '.join(map(str, left))}")


def _status(paths: ClusterPaths) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(paths.status.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Start:
    """A cluster's first process, as the file `init` has it; that of an older version lacks the last two."""

    pid: int
    time: str
    boot: str = ""
    machine: str = ""

    def is_of_another_machine(self) -> bool:
        return self.machine not in ("", _machine())


def _last_start(paths: ClusterPaths) -> _Start | None:
    try:
        pid, *more = (paths.root / "init").read_text().split()
        return _Start(int(pid), *more)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _init_pid(paths: ClusterPaths) -> int | None:
    """The PID of the cluster's first process, if it runs. A reused PID has another start time, or another boot."""
    last = _last_start(paths)
    if last is None or last.is_of_another_machine() or last.boot not in ("", _boot()):
        return None
    return last.pid if _start_time(last.pid) == last.time else None


def _boot() -> str:
    """A name of the time since this machine was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _machine() -> str:
    """A name of this machine that a restart does not change."""
    try:
        named = Path("/etc/machine-id").read_text().strip()
    except FileNotFoundError:
        named = ""
    return named or os.uname().nodename


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty if there is no such process or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
