"""The images with a single program: pause, busybox, and Argo's three of each version, with upstream's names."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from cluster import build
from cluster.errors import ClusterError
from cluster.parts import ARGO
from cluster.paths import PACKAGE, cache_root
from cluster.plan import NODE_IMAGE_PAUSE
from cluster.progress import Progress
from cluster.tarimage import Entry, Image, Layer, cached_layer, write_layer

BUSYBOX = "docker.io/library/busybox:local"
BUSYBOX_STABLE = "docker.io/library/busybox:stable"  # pods here reach no registry
_BUSYBOX_PROGRAM = Path("/bin/busybox")

# Argo's images run as this user, and Argo's manifests rely on it (runAsNonRoot without a number).
_ARGO_USER = "8737"


def layers_folder() -> Path:
    """The cache folder of layers."""
    return cache_root() / "layers"


def argo_images(version: str, progress: Progress) -> list[Image]:
    """The executor, the controller and the server; their programs are built already."""
    part = ARGO[version]
    key = build.part_key(part)
    images = []
    for program, repository in (
        ("argoexec", "argoexec"),
        ("workflow-controller", "workflow-controller"),
        ("argo", "argocli"),
    ):
        path = layers_folder() / f"{program}-{version}-{key}.tar"
        layer = cached_layer(path)
        if layer is None:
            progress(f"packing the image {repository}:v{version}")
            layer = write_layer(
                path, [*_skeleton(), Entry(f"bin/{program}", 0o755, source=build.binary(part, program))]
            )
        images.append(
            Image(
                reference=f"quay.io/argoproj/{repository}:v{version}",
                layers=(layer,),
                entrypoint=(program,),
                environment={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                # The executor runs as the pod's user, by default root, like upstream's.
                user="" if program == "argoexec" else _ARGO_USER,
                folder="/home/argo" if program == "argo" else "",
            )
        )
    return images


def _skeleton() -> list[Entry]:
    """The files that programs expect; the CA certificates are the host's."""
    entries = [
        Entry("etc/passwd", data=b"root:x:0:0:root:/root:/sbin/nologin\nargo:x:8737:8737::/home/argo:/sbin/nologin\n"),
        Entry("etc/group", data=b"root:x:0:\nargo:x:8737:\n"),
        Entry("etc/nsswitch.conf", data=b"hosts: files dns\n"),
        Entry("home/argo", 0o755, uid=8737, gid=8737),
        Entry("tmp", 0o1777),
    ]
    authorities = Path("/etc/ssl/certs/ca-certificates.crt")
    if authorities.exists():
        entries.append(Entry("etc/ssl/certs/ca-certificates.crt", source=authorities))
    return entries


def pause_image(progress: Progress) -> Image:
    """The container that holds a pod's namespaces: a static C program."""
    source = PACKAGE / "images" / "pause" / "pause.c"
    path = layers_folder() / f"pause-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.tar"
    layer = cached_layer(path) or _compile_pause(source, path, progress)
    return Image(NODE_IMAGE_PAUSE, (layer,), entrypoint=("/pause",), user="65535:65535")


def _compile_pause(source: Path, path: Path, progress: Progress) -> Layer:
    progress("compiling pause")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        command = ["gcc", "-Os", "-static", "-Wall", "-Wextra", "-Werror", "-s", "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
        return write_layer(path, [Entry("pause", 0o755, source=program)])


def busybox_images(progress: Progress) -> list[Image]:
    """Debian's static busybox with a link for each of its programs: for tests, and by the name that examples use."""
    program = _BUSYBOX_PROGRAM
    if not program.exists():
        raise ClusterError(f"{program} is missing: apt-get install busybox-static")
    path = layers_folder() / f"busybox-{hashlib.sha256(program.read_bytes()).hexdigest()[:12]}.tar"
    layer = cached_layer(path)
    if layer is None:
        progress("packing the image busybox")
        listed = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True).stdout.split()
        links = [Entry(f"bin/{applet}", 0o777, link="busybox") for applet in listed if applet != "busybox"]
        users = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
        entries = [Entry("bin/busybox", 0o755, source=program), Entry("etc/passwd", data=users), Entry("tmp", 0o1777)]
        layer = write_layer(path, [*links, *entries])
    return [Image(name, (layer,), command=("sh",), environment={"PATH": "/bin"}) for name in (BUSYBOX, BUSYBOX_STABLE)]
