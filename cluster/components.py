"""The servers of a cluster: the command, dependencies and health probe of each."""

from __future__ import annotations

import os
import socket
import ssl
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cluster.plan import Plan

_PROBE_SECONDS = 10.0
KARPENTER = "karpenter"
# With the default, Go's garbage collector takes a fifth of their CPU, which is scarce on a small machine.
_RARE_COLLECTION = {"GOGC": "400"}
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Component:
    """One server. `probe` is an http(s) URL, or unix:PATH for a socket that must accept a connection."""

    name: str
    command: tuple[str, ...]
    probe: str
    after: tuple[str, ...] = ()
    # How long it may take from its start to its first successful probe.
    ready_seconds: float = 240.0
    # An optional one runs only while a file of its name is in the folder `wanted`.
    optional: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def components(plan: Plan) -> tuple[Component, ...]:
    """All components of a cluster, in start order."""
    return (
        _etcd(plan),
        _containerd(plan),
        _apiserver(plan),
        _controller_manager(plan),
        _scheduler(plan),
        _kubelet(plan),
        _proxy(plan),
        _coredns(plan),
        _kwok(plan),
        _karpenter(plan),
        _second_containerd(plan),
        _second_kubelet(plan),
    )


def healthy(probe: str) -> bool:
    """Probes once."""
    if probe.startswith("unix:"):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_PROBE_SECONDS)
            return client.connect_ex(probe.removeprefix("unix:")) == 0
    try:
        with urllib.request.urlopen(probe, timeout=_PROBE_SECONDS, context=_any_certificate()) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


@cache
def _any_certificate() -> ssl.SSLContext:
    """The probe checks liveness over the loopback device, so certificates are not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _etcd(plan: Plan) -> Component:
    client = "http://127.0.0.1:2379"
    peer = "http://127.0.0.1:2380"
    command = (
        plan.programs["etcd"],
        "--name=etcd",
        f"--data-dir={plan.root}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=etcd={peer}",
        # The data is deleted with the cluster, so fsync would only slow the tests down.
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Component("etcd", command, f"{client}/health", environment=_RARE_COLLECTION)


def _containerd(plan: Plan) -> Component:
    command = ("containerd", "--config", f"{plan.paths.config}/containerd.toml")
    return Component(
        "containerd",
        command,
        f"unix:{plan.paths.containerd_socket}",
        environment=_RARE_COLLECTION | {"TMPDIR": f"{plan.root}/tmp"},
    )


def _apiserver(plan: Plan) -> Component:
    pki, addresses = plan.paths.pki, plan.addresses
    command = (
        plan.programs["kube-apiserver"],
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=6443",
        f"--advertise-address={addresses.node_ip}",
        f"--service-cluster-ip-range={addresses.services}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *_gates(plan),
        *(("--runtime-config=scheduling.k8s.io/v1beta1=true",) if _has_pod_groups(plan) else ()),
    )
    return Component(
        "kube-apiserver",
        command,
        "https://127.0.0.1:6443/readyz",
        after=("etcd",),
        environment=_RARE_COLLECTION | {"GOMEMLIMIT": str(_api_server_bytes())},
    )


def _gates(plan: Plan) -> tuple[str, ...]:
    return ("--feature-gates=GenericWorkload=true",) if _has_pod_groups(plan) else ()


def _has_pod_groups(plan: Plan) -> bool:
    """Whether this Kubernetes can place the pods of a PodGroup as a whole."""
    return tuple(map(int, plan.kubernetes.split("."))) >= (1, 37)


def _api_server_bytes() -> int:
    """The memory from which the API server collects more often: a quarter of what there is, or 2 GiB.

    With ten thousand Workflows, it needs more than 2 GiB, and at its limit it collects half of the time.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _MEMORY_LIMITS:  # of the container in which this runs
        with suppress(OSError, ValueError):  # "max" is no limit
            total = min(total, int(Path(file).read_text()))
    return max(2 * 2**30, total // 4)


def _controller_manager(plan: Plan) -> Component:
    kubeconfig = f"{plan.paths.config}/controller-manager.kubeconfig"
    command = (
        plan.programs["kube-controller-manager"],
        f"--kubeconfig={kubeconfig}",
        f"--root-ca-file={plan.paths.pki}/ca.crt",
        f"--service-account-private-key-file={plan.paths.pki}/sa.key",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        # With a thousand pods behind one Service, a write of its addresses for each pod takes most of a processor.
        "--endpoint-updates-batch-period=500ms",
        "--endpointslice-updates-batch-period=500ms",
        # Volumes for claims of the default StorageClass: folders of the host; see namespace.py.
        "--enable-hostpath-provisioner=true",
        *_gates(plan),
    )
    probe, after = "https://127.0.0.1:10257/healthz", ("kube-apiserver",)
    return Component("kube-controller-manager", command, probe, after=after, environment=_RARE_COLLECTION)


def _scheduler(plan: Plan) -> Component:
    command = (
        plan.programs["kube-scheduler"],
        f"--kubeconfig={plan.paths.config}/scheduler.kubeconfig",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        *_gates(plan),
    )
    probe, after = "https://127.0.0.1:10259/healthz", ("kube-apiserver",)
    return Component("kube-scheduler", command, probe, after=after, environment=_RARE_COLLECTION)


def _kubelet(plan: Plan) -> Component:
    command = (
        plan.programs["kubelet"],
        f"--config={plan.paths.config}/kubelet.json",
        f"--kubeconfig={plan.paths.config}/kubelet.kubeconfig",
        f"--root-dir={plan.root}/kubelet",
        f"--hostname-override={plan.node}",
        f"--node-ip={plan.addresses.node_ip}",
    )
    probe, after = "http://127.0.0.1:10248/healthz", ("kube-apiserver", "containerd")
    return Component("kubelet", command, probe, after=after, environment=_RARE_COLLECTION)


def _proxy(plan: Plan) -> Component:
    command = (plan.programs["kube-proxy"], f"--config={plan.paths.config}/proxy.json")
    return Component("kube-proxy", command, "http://127.0.0.1:10256/livez", after=("kube-apiserver",))


def _coredns(plan: Plan) -> Component:
    command = (plan.programs["coredns"], "-conf", f"{plan.paths.config}/Corefile")
    return Component("coredns", command, "http://127.0.0.1:8181/ready", after=("kube-apiserver",))


def _kwok(plan: Plan) -> Component:
    command = (
        plan.programs["kwok"],
        f"--kubeconfig={plan.paths.config}/kwok.kubeconfig",
        f"--config={plan.paths.config}/kwok.yaml",
        "--manage-all-nodes=false",
        "--manage-nodes-with-label-selector=kwok.x-k8s.io/node=fake",
        f"--cidr={plan.addresses.fake_pods}",
        f"--node-ip={plan.addresses.node_ip}",
        "--node-lease-duration-seconds=40",
        "--server-address=127.0.0.1:10247",
    )
    probe, after = "http://127.0.0.1:10247/healthz", ("kube-apiserver",)
    return Component("kwok", command, probe, after=after, optional=True, environment=_RARE_COLLECTION)


def _karpenter(plan: Plan) -> Component:
    # Its program is built when it is asked for (karpenter.py): the file that asks for it says where it is.
    command = ("sh", "-c", 'exec "$(cat "$0")"', f"{plan.paths.wanted}/{KARPENTER}")
    environment = _RARE_COLLECTION | {
        "KUBECONFIG": str(plan.paths.kubeconfig),
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": "10281",
        "HEALTH_PROBE_PORT": "10282",
        "INSTANCE_TYPES_FILE_PATH": f"{plan.paths.config}/instance-types.json",
    }
    probe, after = "http://127.0.0.1:10282/healthz", ("kube-apiserver",)
    return Component(KARPENTER, command, probe, after=after, optional=True, environment=environment)


def _second_containerd(plan: Plan) -> Component:
    command = ("containerd", "--config", f"{plan.paths.config}/containerd-2.toml")
    probe, environment = f"unix:{plan.paths.second_socket}", _RARE_COLLECTION | {"TMPDIR": f"{plan.root}/tmp"}
    return Component("containerd-2", command, probe, optional=True, environment=environment)


def _second_kubelet(plan: Plan) -> Component:
    folder = f"{plan.root}/kubelet-2"
    # A disk of its own is mounted before the kubelet looks at the folder: the file says how large it is, if it has one.
    mount = 'mkdir -p "$1" && mount -t tmpfs -o size="$mib"m disk "$1"'
    disk = f'mib=$(cat "$0"); [ -z "$mib" ] || mountpoint -q "$1" || {{ {mount}; }}'
    command = (
        "sh",
        "-c",
        f'{disk}; shift; exec "$@"',
        f"{plan.paths.wanted}/kubelet-2",
        folder,
        plan.programs["kubelet"],
        f"--config={plan.paths.config}/kubelet-2.json",
        f"--kubeconfig={plan.paths.config}/kubelet-2.kubeconfig",
        f"--root-dir={folder}",
        f"--hostname-override={plan.second_node}",
        f"--node-ip={plan.addresses.node_ip}",
    )
    after = ("kube-apiserver", "containerd-2")
    return Component("kubelet-2", command, "http://127.0.0.1:10268/healthz", after=after, optional=True)


def log_file(plan: Plan, name: str) -> Path:
    """The log of one component."""
    return plan.paths.logs / f"{name}.log"
