"""The image of a job's containers: Debian's Python, the packages of the examples, and this checkout's code.

It has three layers, the most stable first: Debian, Python packages, code. A change of the code makes only a new last
layer, in well under a second.

The repository's Dockerfile makes the same image with a container engine. tests/cluster/test_dockerfile.py builds it on
`foundation` and compares the two file by file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from cluster import packages, pythonpackages
from cluster.build import locked
from cluster.errors import ClusterError
from cluster.paths import REPOSITORY, cache_root
from cluster.progress import Progress
from cluster.smallimages import layers_folder
from cluster.tarimage import Entry, Image, Layer, cached_layer, tree, write_layer

NAME = "docker.io/diflow/diflow"
_USER = "65532"
_SUITE = "bookworm"
_DEBIAN_PACKAGES = ("ca-certificates", "libstdc++6", "procps", "python3")
# Of the image of examples/ddp: what torch and diflow's client need.
_TRAINING_PACKAGES = ("python3", "python3-requests", "python3-torch")
# Debian's torch depends on programs for videos and maps, which need graphics drivers. Nothing here loads them.
_TRAINING_EXCLUDES = (
    "/usr/lib/*/dri/*",
    "/usr/lib/*/libLLVM*",
    "/usr/lib/*/mfx/*",
)
_SITE = "usr/local/lib/python3.11/dist-packages"
_CODE = ("diflow", "examples")
# Switching between a few branches should not rebuild everything.
_LAYERS_KEPT = {"code": 5, "python": 2, "debian": 2, "training": 1}
_WHEELS_KEPT = 2
# Increase this when the construction of a layer changes.
_RECIPE = 3

_VERSION = re.compile(r"^__version__\b[^=]*= *\"([^\"]+)\"", re.MULTILINE)

_ENVIRONMENT = {
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
_COMMAND_FILE = b"#!/usr/bin/env python3\nfrom diflow.cli import run\n\nrun()\n"


def version() -> str:
    """The project's version, the image's tag."""
    path = REPOSITORY / "diflow" / "version.py"
    found = _VERSION.search(path.read_text())
    if found is None:
        raise ClusterError(f"{path} holds no __version__: the diflow image takes its tag from it")
    return found.group(1)


def reference() -> str:
    """The image's full name."""
    return f"{NAME}:{version()}"


def diflow_image(progress: Progress) -> Image:
    """The whole image, made of cached layers if possible."""
    with locked("diflow-image", progress):
        debian = _debian(progress)
        python = _python(debian, progress)
        code = _code(progress)
    return _image(reference(), debian, python, code)


def base_image(progress: Progress) -> Image:
    """The same without the code."""
    with locked("diflow-image", progress):
        debian = _debian(progress)
        python = _python(debian, progress)
        _forget_old("debian", debian.path)
        _forget_old("python", python.path)
    return _image(f"{NAME}-base:{version()}", debian, python)


def training_image(progress: Progress) -> Image:
    """The image of examples/ddp: Debian's torch, and the code for diflow's client. examples/ddp/Dockerfile makes
    another one."""
    with locked("training-image", progress):
        debian = _debian(progress, "training", _TRAINING_PACKAGES, _TRAINING_EXCLUDES)
        _forget_old("training", debian.path)
    with locked("diflow-image", progress):
        code = _code(progress)
    python = [Entry(f"{_SITE}/diflow.pth", data=b"/opt/diflow\n/opt/diflow/examples\n")]
    path = layers_folder() / f"path-{_key('path', 'examples')}.tar"
    return Image(
        reference=f"{NAME}-ddp:{version()}",
        layers=(debian, cached_layer(path) or write_layer(path, python), code),
        command=("python3",),
        environment={k: v for k, v in _ENVIRONMENT.items() if not k.startswith("MPL")},
        user=f"{_USER}:{_USER}",
        folder="/opt/diflow",
    )


def foundation(progress: Progress) -> Image:
    """Only Debian and its Python: a small equivalent of the Dockerfile's BASE."""
    with locked("diflow-image", progress):
        debian = _debian(progress)
    return Image(f"localhost/diflow-foundation:{_SUITE}", (debian,), environment={"PATH": _ENVIRONMENT["PATH"]})


def wheels(progress: Progress) -> Path:
    """A folder with the wheels of the image's packages. The user's pip downloads them once for a lock file."""
    needed = _needed()
    folder = cache_root() / "wheels" / _key(needed)
    if folder.exists():
        return folder
    with locked("wheels", progress):
        if not folder.exists():
            _download(needed, folder, progress)
            others = sorted(folder.parent.glob("[!.]*"), key=lambda p: p.stat().st_mtime, reverse=True)
            for old in others[_WHEELS_KEPT:]:
                shutil.rmtree(old, ignore_errors=True)
    return folder


def _needed() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return pythonpackages.locked(project, (REPOSITORY / "requirements.lock").read_text())


def _download(needed: str, folder: Path, progress: Progress) -> None:
    log = cache_root() / "logs" / "image-wheels.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    progress(f"downloading the image's Python packages, log {log}")
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as name, log.open("w") as out:
        (Path(name) / "requirements.txt").write_text(needed)
        staged = Path(name) / "wheels"
        _run(
            [*packages.pip(progress), "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:",
             "--python-version=3.11", f"--dest={staged}", "-r", f"{name}/requirements.txt"],
            "downloading the Python packages of the diflow image", out.fileno(), log,
        )  # fmt: skip
        staged.rename(folder)


def _image(name: str, *layers: Layer) -> Image:
    return Image(
        reference=name,
        layers=layers,
        command=("python3",),
        environment=_ENVIRONMENT,
        user=f"{_USER}:{_USER}",
        folder="/opt/diflow",
    )


def _debian(
    progress: Progress,
    kind: str = "debian",
    wanted: tuple[str, ...] = _DEBIAN_PACKAGES,
    without: tuple[str, ...] = (),
) -> Layer:
    path = layers_folder() / f"{kind}-{_key(_SUITE, *wanted, *without)}.tar"
    layer = cached_layer(path)
    if layer is not None:
        return layer
    log = cache_root() / "logs" / f"image-{kind}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    progress(f"unpacking Debian {_SUITE} with {', '.join(wanted)}, log {log}")
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "root.tar"
        command = ["mmdebstrap", "--mode=root", "--variant=essential", f"--include={','.join(wanted)}"]
        command += [f"--dpkgopt=path-exclude=/usr/share/{f}/*" for f in ("doc", "info", "locale", "man")]
        command += [f"--dpkgopt=path-exclude={path}" for path in without]
        command += [_SUITE, str(unpacked), *_sources()]
        with log.open("w") as out:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"SOURCE_DATE_EPOCH": "0"}, check=False
            )
        if done.returncode != 0:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ClusterError(f"Debian's part of the diflow image failed: {' '.join(last)} (whole log: {log})")
        root = Path(folder) / "root"
        _extract(unpacked, root)
        # The copy gives every folder mode 0755; these two are world-writable.
        return write_layer(path, [*tree(root, ""), Entry("tmp", 0o1777), Entry("var/tmp", 0o1777)])


def _sources() -> list[str]:
    """The host's package sources if it has the same Debian (it may use a mirror), else Debian's."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if path.exists() and _SUITE in path.read_text():
            return [str(path)]
    return []


def _python(debian: Layer, progress: Progress) -> Layer:
    needed = _needed()
    path = layers_folder() / f"python-{_key(debian.digest, needed)}.tar"
    layer = cached_layer(path)
    if layer is not None:
        return layer
    downloaded = wheels(progress)
    log = cache_root() / "logs" / "image-python.log"
    progress(f"installing the image's Python packages, log {log}")
    with tempfile.TemporaryDirectory() as folder, log.open("w") as out:
        root = Path(folder) / "root"
        _extract(debian.path, root)
        (Path(folder) / "requirements.txt").write_text(needed)
        site = root / _SITE
        _run(
            [*packages.pip(progress), "install", "--quiet", "--no-compile", "--require-hashes", "--no-deps",
             "--no-index", f"--find-links={downloaded}", "--only-binary=:all:", "--python-version=3.11",
             f"--target={site}", "-r", f"{folder}/requirements.txt"],
            "installing the Python packages of the diflow image", out.fileno(), log,
        )  # fmt: skip
        # Scripts with the path of this machine's interpreter, which the image does not have.
        shutil.rmtree(site / "bin", ignore_errors=True)
        # Compiled by the image's interpreter, as the containers' user cannot write there.
        _run(
            ["chroot", str(root), "/usr/bin/python3", "-m", "compileall", "-q",
             "--invalidation-mode", "unchecked-hash", f"/{_SITE}", "/usr/lib/python3.11"],
            "compiling the Python packages of the diflow image", out.fileno(), log,
        )  # fmt: skip
        users = (root / "etc/passwd").read_bytes() + f"diflow:x:{_USER}:{_USER}::/opt/diflow:/bin/sh\n".encode()
        groups = (root / "etc/group").read_bytes() + f"diflow:x:{_USER}:\n".encode()
        return write_layer(
            path,
            [
                *tree(site, _SITE),
                *tree(root / "usr/lib/python3.11", "usr/lib/python3.11", _is_compiled),
                Entry(f"{_SITE}/diflow.pth", data=b"/opt/diflow\n/opt/diflow/examples\n"),
                Entry("usr/local/bin/diflow", 0o755, data=_COMMAND_FILE),
                Entry("etc/passwd", data=users),
                Entry("etc/group", data=groups),
            ],
        )


def _is_compiled(path: str) -> bool:
    return "." not in Path(path).name or path.endswith(".pyc")


def _code(progress: Progress) -> Layer:
    entries = [Entry("opt/diflow", 0o755)]
    for folder in _CODE:
        if (REPOSITORY / folder).is_dir():
            entries += tree(REPOSITORY / folder, f"opt/diflow/{folder}", _is_code)
    digest = hashlib.sha256()
    for entry in entries:
        content = entry.source.read_bytes() if entry.source else (entry.link or "").encode()
        digest.update(f"{entry.path}\0{entry.mode}\0{len(content)}\0".encode() + content)
    path = layers_folder() / f"code-{digest.hexdigest()[:12]}.tar"
    layer = cached_layer(path)
    if layer is None:
        progress("packing this checkout's code into the diflow image")
        layer = write_layer(path, entries)
        _forget_old("code", path)
    return layer


def _is_code(path: str) -> bool:
    name = Path(path).name
    return not name.startswith(".") and name not in ("__pycache__", "out")


def _forget_old(kind: str, newest: Path) -> None:
    layers = sorted(layers_folder().glob(f"{kind}-*.tar"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in layers[_LAYERS_KEPT[kind] :]:
        if path != newest:
            path.with_suffix(".sha256").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _extract(archive: Path, target: Path) -> None:
    """Unpacks a tar file of ours or mmdebstrap's without device files, as a container gets its own /dev."""
    target.mkdir()
    command = ["tar", "--extract", "--file", str(archive), "--directory", str(target), "--exclude=./dev/*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"unpacking {archive} failed: {done.stderr.strip()}")


def _run(command: list[str], what: str, out: int, log: Path) -> None:
    done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ClusterError(f"{what} failed: {' '.join(last)} (whole log: {log})")


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join([str(_RECIPE), *parts]).encode()).hexdigest()[:12]
