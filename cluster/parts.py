"""The programs to build from each Go module, and how.

The versions are pinned in go/<part>/go.mod and go.sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ARGO_VERSIONS = ("4.0.7", "3.7.3")
DEFAULT_ARGO = ARGO_VERSIONS[0]
KUBERNETES_VERSIONS = ("1.37.2", "1.34.4")
DEFAULT_KUBERNETES = KUBERNETES_VERSIONS[0]

# The commits of upstream's tags.
_ARGO_COMMITS = {
    "4.0.7": "9aeb47ce10339f4a14819335c6a00027353ba0df",
    "3.7.3": "bded09fe4abd37cb98d7fc81b4c14a6f5034e9ab",
}


@dataclass(frozen=True, slots=True)
class Versions:
    """What a cluster runs: the version of Kubernetes' control plane, and that of Argo or "none"."""

    kubernetes: str = DEFAULT_KUBERNETES
    argo: str = DEFAULT_ARGO

    def __str__(self) -> str:
        return f"Kubernetes {self.kubernetes} and " + ("no Argo" if self.argo == "none" else f"Argo {self.argo}")


@dataclass(frozen=True, slots=True)
class Program:
    """One binary."""

    name: str
    package: str


@dataclass(frozen=True, slots=True)
class Part:
    """The programs of one go.mod."""

    name: str
    module: str
    version: str
    programs: tuple[Program, ...]
    ldflags: str = "-s -w"
    # Argo's module lacks a symbolic link and the built web page, so a patched copy of it is built.
    patch: str = ""
    keep: tuple[str, ...] = field(default=())
    # Parts of one family are built in sequence, as they share most packages, which are then compiled once.
    family: str = ""


_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def _kubernetes(version: str, commands: tuple[str, ...]) -> Part:
    return Part(
        name=f"kubernetes-{version}",
        module="k8s.io/kubernetes",
        version=version,
        programs=tuple(Program(c, f"k8s.io/kubernetes/cmd/{c}") for c in commands),
        # Clients reject a server of version v0.0.0-master.
        ldflags=f"-s -w -X k8s.io/component-base/version.gitVersion=v{version}",
        family=f"kubernetes-{version}",
    )


def _argo(version: str) -> Part:
    module = f"github.com/argoproj/argo-workflows/v{version[0]}"
    # Without the commit Argo's version is "v4.0.7+unknown".
    values = {
        "version": f"v{version}",
        "gitTag": f"v{version}",
        "gitCommit": _ARGO_COMMITS[version],
        "gitTreeState": "clean",
    }
    stamp = " ".join(f"-X {module}.{name}={value}" for name, value in values.items())
    return Part(
        name=f"argo-{version}",
        module=module,
        version=version,
        programs=tuple(Program(c, f"{module}/cmd/{c}") for c in ("argoexec", "workflow-controller", "argo")),
        ldflags=f"-s -w {stamp}",
        patch="argo",
        family="argo",
        keep=("manifests",),
    )


ETCD = Part("etcd", "go.etcd.io/etcd/server/v3", "3.6.6", (Program("etcd", "."),))
# From 1.36 on the kubelet needs containerd 2, and Debian 12 has 1.6. A kubelet may be three minor versions older than
# its API server.
NODE = _kubernetes("1.34.4", ("kubelet", "kube-proxy"))
CONTROL_PLANES = {version: _kubernetes(version, _CONTROL_PLANE) for version in KUBERNETES_VERSIONS}
"""By version: the API server, the controller manager, the scheduler and kubectl."""
COREDNS = Part("coredns", "github.com/coredns/coredns", "1.15.0", (Program("coredns", "."),))
KWOK = Part(
    "kwok",
    "sigs.k8s.io/kwok",
    "0.7.0",
    (Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),),
    ldflags="-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v0.7.0",
)
ARGO = {version: _argo(version) for version in ARGO_VERSIONS}
