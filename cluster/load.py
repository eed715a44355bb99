"""Loads images into a cluster's containerd, unless it has them already."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import ClusterError, UsageError
from cluster.plan import Plan
from cluster.progress import Progress
from cluster.supervisor import write_atomically
from cluster.tarimage import Image, write_oci

SECOND = "containerd-2"
SECOND_NOTE = "images-2.json"


def load(plan: Plan, images: Iterable[Image], progress: Progress) -> None:
    """Imports the images that this cluster does not have, on each of its nodes."""
    images = list(images)
    _load(plan, images, progress, socket=plan.paths.containerd_socket, note=plan.paths.root / "images.json")
    if (plan.paths.wanted / SECOND).exists():
        note = plan.paths.root / SECOND_NOTE
        _load(plan, images, progress, socket=plan.paths.second_socket, note=note)


def _load(plan: Plan, images: Iterable[Image], progress: Progress, *, socket: Path, note: Path) -> None:
    """As `load`, on one node; a file beside the cluster's state lists the images that it has."""
    known: dict[str, str] = json.loads(note.read_text()) if note.exists() else {}
    for image in images:
        if known.get(image.reference) != image.digest:
            import_image(socket, image)
            known[image.reference] = image.digest
            write_atomically(note, json.dumps(known, indent=2, sort_keys=True) + "\n")
            progress(f"{plan.name}: image {image.reference} loaded")


def import_image(socket: Path, image: Image) -> None:
    """Streams an image into a containerd, without the layers that it already has."""
    present = {line.removeprefix("sha256:") for line in _ctr(socket, "content", "ls", "--quiet").split()}
    command = _ctr_command(socket, "images", "import", "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            write_oci(image, process.stdin, present)
            process.stdin.close()
        except BrokenPipeError:
            pass  # The reason is in its output.
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise ClusterError(f"image {image.reference} could not be loaded through {socket}: {said}")


def load_file(plan: Plan, path: Path, progress: Progress) -> None:
    """Imports an image file as written by `docker save` or an OCI tool."""
    if not path.is_file():
        raise UsageError(f"no image file {path}: make one with `docker save IMAGE -o {path}`")
    said = _ctr(plan.paths.containerd_socket, "images", "import", str(path))
    if (plan.paths.wanted / SECOND).exists():
        _ctr(plan.paths.second_socket, "images", "import", str(path))
    progress(f"{plan.name}: {path} loaded: {' '.join(said.split())}")


def _ctr(socket: Path, *arguments: str) -> str:
    done = subprocess.run(_ctr_command(socket, *arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`ctr {' '.join(arguments)}` failed at {socket}: {done.stderr.strip()}")
    return done.stdout


def _ctr_command(socket: Path, *arguments: str) -> list[str]:
    return ["ctr", "--address", str(socket), "--namespace", "k8s.io", *arguments]
