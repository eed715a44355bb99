"""Writes the configuration files of every component. JSON is used for YAML files, as it is valid YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cluster.paths import PACKAGE
from cluster.plan import NODE_IMAGE_PAUSE, Plan

# The kubelet and kube-proxy require these values and would set them for the whole machine; see namespace.py.
KERNEL_SETTINGS: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

_UNUSED_PLUGINS = (
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
)
_USERS = ("admin", "controller-manager", "scheduler", "proxy", "coredns", "kwok", "kubelet", "kubelet-2")


def write_all(plan: Plan) -> None:
    """Writes all configuration files of the components."""
    config = plan.paths.config
    config.mkdir(parents=True, exist_ok=True)
    for user in _USERS:
        path = plan.paths.kubeconfig if user == "admin" else config / f"{user}.kubeconfig"
        _private(path, kubeconfig(plan, user))
    (config / "containerd.toml").write_text(_containerd(plan))
    (config / "containerd-2.toml").write_text(_containerd(plan, "-2"))
    (config / "cni").mkdir(exist_ok=True)
    (config / "cni" / "10-pods.conflist").write_text(_json(_cni(plan)))
    (config / "kubelet.json").write_text(_json(_kubelet(plan)))
    (config / "kubelet-2.json").write_text(_json(_kubelet(plan) | _second_kubelet(plan)))
    (config / "proxy.json").write_text(_json(_proxy(plan)))
    (config / "Corefile").write_text(corefile(plan))
    (config / "resolv.conf").write_text(f"nameserver {plan.addresses.node_ip}\n")
    (config / "kwok.yaml").write_text("---\n".join(p.read_text() for p in sorted((PACKAGE / "kwok").glob("*.yaml"))))
    for setting, value in KERNEL_SETTINGS.items():
        (config / setting.replace("/", ".")).write_text(value + "\n")


def kubeconfig(plan: Plan, user: str) -> str:
    """A kubeconfig for one certificate; it has file paths, so it is valid on this machine only."""
    pki = plan.paths.pki
    # Quoted: an unquoted `y`, `no` or `null` is not text for kubectl.
    name = json.dumps(plan.name)
    return f"""apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {plan.api_url}
    certificate-authority: {pki}/ca.crt
users:
- name: {user}
  user:
    client-certificate: {pki}/{user}.crt
    client-key: {pki}/{user}.key
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {user}
    namespace: default
current-context: {name}
"""


def disabled_plugins(*more: str) -> str:
    """The containerd plugins to disable, as a TOML list: those that this project never uses, and `more`."""
    return json.dumps([*_UNUSED_PLUGINS, *more])


def _containerd(plan: Plan, suffix: str = "") -> str:
    root = plan.paths.root
    return f"""version = 2
root = "{root}/containerd{suffix}"
state = "/run/containerd{suffix}"
temp = "{root}/tmp"
disabled_plugins = {disabled_plugins()}

[grpc]
  address = "{root}/containerd{suffix}.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{NODE_IMAGE_PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{plan.paths.config}/cni"
"""


def _cni(plan: Plan) -> dict[str, object]:
    # Point to point, not a bridge: every packet is routed by the node, so Services work between pods
    # without the kernel's bridge filter.
    point_to_point = {
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "dataDir": f"{plan.paths.root}/cni",
            "ranges": [[{"subnet": str(plan.addresses.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [point_to_point]}


def _kubelet(plan: Plan) -> dict[str, object]:
    pki, root = plan.paths.pki, plan.paths.root
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet-serving.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet-serving.key",
        "containerRuntimeEndpoint": f"unix://{plan.paths.containerd_socket}",
        "clusterDNS": [plan.addresses.node_ip],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{plan.paths.config}/resolv.conf",
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": f"{root}/kubelet-plugins",
        # On cgroup v1 the kubelet exits by default; without per-QoS groups it needs no delegation.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "maxPods": 250,
        "podPidsLimit": -1,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "serializeImagePulls": False,
        # There is no registry: an image that the kubelet garbage-collects could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%"},
        "evictionPressureTransitionPeriod": "30s",
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "volumeStatsAggPeriod": "5m",
        "registerNode": True,
    }


def _second_kubelet(plan: Plan) -> dict[str, object]:
    """What the second node's kubelet has of its own: it lives beside the first one in the same namespaces."""
    return {
        "containerRuntimeEndpoint": f"unix://{plan.paths.second_socket}",
        "podLogsDir": "/var/log/pods-2",  # each kubelet removes what it does not know
        "volumePluginDir": f"{plan.paths.root}/kubelet-2-plugins",
        "port": 10260,
        "healthzPort": 10268,
    }


def _proxy(plan: Plan) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{plan.paths.config}/proxy.kubeconfig"},
        "mode": "iptables",
        "clusterCIDR": str(plan.addresses.pods),
        "hostnameOverride": plan.node,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # The conntrack table belongs to the whole machine: keep its size.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "0s"},
    }


def corefile(plan: Plan) -> str:
    """CoreDNS' configuration. Its plugins must be compiled in: go/coredns/main.go."""
    return f"""cluster.local:53 in-addr.arpa:53 {{
    bind {plan.addresses.node_ip}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {plan.paths.config}/coredns.kubeconfig {plan.name}
        pods insecure
        ttl 1
    }}
    loop
}}
.:53 {{
    bind {plan.addresses.node_ip}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
