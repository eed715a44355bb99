"""A containerd with the large images, kept in the cache and linked into each new cluster.

Importing and unpacking half a gigabyte takes two busy cores half a minute. It is done once for a set of images; a new
cluster gets hard links to the unpacked files, which overlay mounts never write, and its own copy of the small
databases.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from cluster.build import locked
from cluster.components import healthy
from cluster.config import disabled_plugins
from cluster.errors import ClusterError
from cluster.load import import_image
from cluster.paths import cache_root
from cluster.progress import Progress
from cluster.tarimage import Image

# All timeouts of this package are for busy machines: a start normally takes seconds.
_START_SECONDS = 100.0
_STOP_SECONDS = 60.0
_NOTE = "images.json"

# Only the image store is needed: no containers run, so the CRI plugin is not loaded.
_CONTAINERS = "io.containerd.grpc.v1.cri"
_CONFIG = """version = 2
root = "{folder}/root"
state = "{folder}/state"
temp = "{folder}/temp"
disabled_plugins = {disabled}

[grpc]
  address = "{socket}"
"""


def seed(kind: str, images: list[Image], progress: Progress) -> Path:
    """The folder of a containerd with these images, created if missing. One of each kind is kept."""
    digest = hashlib.sha256("".join(image.reference + image.digest for image in images).encode())
    folder = cache_root() / "containerd" / f"{kind}-{digest.hexdigest()[:12]}"
    if folder.exists():
        return folder
    with locked(f"containerd-{kind}", progress):
        if not folder.exists():
            progress("unpacking the images into the cache, once")
            _make(folder, images)
            for old in folder.parent.glob(f"{kind}-*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
    return folder


def plant(folder: Path, target: Path) -> dict[str, str]:
    """Links a seed to a new containerd's root; returns the images that it then has, none if links are impossible."""
    done = subprocess.run(
        ["cp", "--archive", "--link", str(folder / "root"), str(target)], capture_output=True, check=False
    )
    if done.returncode != 0:
        # The cache is on another file system: the images are imported instead.
        shutil.rmtree(target, ignore_errors=True)
        return {}
    for database in target.rglob("*.db"):
        copy = database.with_suffix(".copy")
        shutil.copyfile(database, copy)
        copy.rename(database)
    known: dict[str, str] = json.loads((folder / _NOTE).read_text())
    return known


def _make(folder: Path, images: list[Image]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # In a temporary folder that is then renamed; the socket elsewhere, as its path must be short.
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as name, tempfile.TemporaryDirectory() as short:
        work, socket = Path(name), Path(short) / "sock"
        (work / "config.toml").write_text(
            _CONFIG.format(folder=work, socket=socket, disabled=disabled_plugins(_CONTAINERS))
        )
        log = cache_root() / "logs" / "containerd.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # In namespaces of its own, so that not even a kill leaves a process or a mount behind.
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += ["containerd", "--config", str(work / "config.toml")]
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
            try:
                _await_socket(process, socket, log)
                for image in images:
                    import_image(socket, image)
            finally:
                _stop(process)
        (work / _NOTE).write_text(json.dumps({image.reference: image.digest for image in images}))
        for scrap in ("state", "temp"):
            shutil.rmtree(work / scrap, ignore_errors=True)
        staged = folder.with_name(f".{folder.name}.{os.getpid()}")
        work.rename(staged)
        staged.rename(folder)
        work.mkdir()


def _await_socket(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not healthy(f"unix:{socket}"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError(f"containerd did not start to unpack the images: see {log}")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stops containerd gracefully, so that its databases are complete: the signal goes to it, not to its unshare."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in children.read_text().split() if children.exists() else []:
        subprocess.run(["kill", "-TERM", child], check=False, capture_output=True)
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
