"""Creates the certificates and keys of one cluster with openssl: one authority, as short-lived as the cluster."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

_DAYS = "3650"


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate to create: `organizations` are the user's groups in Kubernetes."""

    file: str
    common_name: str
    organizations: tuple[str, ...] = ()
    alternative_names: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return "".join(f"/O={o}" for o in self.organizations) + f"/CN={self.common_name}"


def certificates(node: str, node_ip: str, api_service_ip: str) -> tuple[Certificate, ...]:
    """The certificates of a cluster with one node, and that of the second one's kubelet, which serves with the same
    certificate: both have one address."""
    api_names = (
        "DNS:kubernetes",
        "DNS:kubernetes.default",
        "DNS:kubernetes.default.svc",
        "DNS:kubernetes.default.svc.cluster.local",
        "DNS:localhost",
        "IP:127.0.0.1",
        f"IP:{api_service_ip}",
        f"IP:{node_ip}",
    )
    return (
        Certificate("apiserver", "kube-apiserver", alternative_names=api_names),
        Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",)),
        Certificate("admin", "diflow-cluster-admin", ("system:masters",)),
        Certificate("controller-manager", "system:kube-controller-manager"),
        Certificate("scheduler", "system:kube-scheduler"),
        Certificate("proxy", "system:kube-proxy"),
        Certificate("coredns", "diflow-cluster:coredns"),
        Certificate("kwok", "diflow-cluster:kwok"),
        Certificate("kubelet", f"system:node:{node}", ("system:nodes",)),
        Certificate("kubelet-2", f"system:node:{node}-2", ("system:nodes",)),
        Certificate("kubelet-serving", f"system:node:{node}", (), (f"DNS:{node}", f"IP:{node_ip}")),
    )


def create(folder: Path, wanted: tuple[Certificate, ...]) -> None:
    """Writes ca.crt, ca.key, sa.key, sa.pub and a pair of .crt and .key for each certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
    _openssl(
        folder, "req", "-x509", "-new", "-key", "ca.key", "-days", _DAYS, "-subj", "/CN=diflow-cluster-ca",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature", "-out", "ca.crt",
    )  # fmt: skip
    _openssl(folder, "genrsa", "-out", "sa.key", "2048")
    _openssl(folder, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for serial, certificate in enumerate(wanted, start=2):
        _issue(folder, certificate, serial)


def _issue(folder: Path, certificate: Certificate, serial: int) -> None:
    file = certificate.file
    extensions = ["basicConstraints=CA:FALSE", "keyUsage=critical,digitalSignature,keyEncipherment"]
    extensions.append("extendedKeyUsage=serverAuth,clientAuth")
    if certificate.alternative_names:
        extensions.append("subjectAltName=" + ",".join(certificate.alternative_names))
    (folder / f"{file}.ext").write_text("\n".join(extensions) + "\n")
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{file}.key")
    _openssl(folder, "req", "-new", "-key", f"{file}.key", "-subj", certificate.subject, "-out", f"{file}.csr")
    _openssl(
        folder, "x509", "-req", "-in", f"{file}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", str(serial),
        "-days", _DAYS, "-extfile", f"{file}.ext", "-out", f"{file}.crt",
    )  # fmt: skip
    (folder / f"{file}.csr").unlink()
    (folder / f"{file}.ext").unlink()


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`openssl {' '.join(arguments)}` failed in {folder}: {done.stderr.strip()}")
