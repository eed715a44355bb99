"""A whole release: its files, and an image by the Dockerfile that has the same files as the tests' image.

No registry of images is reached from here, so both images stand on the Debian that `cluster/` unpacks, and buildah gets
the wheels from the cache. It has a store of its own, which goes with the test.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from cluster import diflowimage, packages
from cluster.paths import REPOSITORY
from cluster.tarimage import Image, tree, write_image, write_layer

INSTALLER = "localhost/diflow-installer:1"
SITE = "usr/local/lib/python3.11/dist-packages"
# buildah puts its own file there while a command runs, and leaves an empty one.
LEFT_BY_BUILDAH = {"etc/hosts"}


def quiet(_: str) -> None:
    """Takes the place of progress."""


@dataclass(frozen=True)
class Read:
    """An image file: its configuration, and what each path in it is, with the layers upon each other."""

    config: dict[str, Any]
    files: dict[str, tuple[object, ...]]

    @property
    def distributions(self) -> set[str]:
        """Name and version of each Python package."""
        return {found[1] for path in self.files if (found := re.fullmatch(rf"{SITE}/([^/]+)\.dist-info", path))}


def read(stream: IO[bytes] | gzip.GzipFile, folder: Path) -> Read:
    """Reads what `docker save` writes."""
    folder.mkdir()
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(folder, filter="data")
    (manifest,) = json.loads((folder / "manifest.json").read_text())
    files: dict[str, tuple[object, ...]] = {}
    for layer in manifest["Layers"]:
        with tarfile.open(folder / layer) as archive:
            for member in archive:
                path = member.name.removeprefix("./").strip("/")
                assert not path.rpartition("/")[2].startswith(".wh."), f"{path}: a layer takes away what is below it"
                files[path] = (member.type, member.mode & 0o7777, member.uid, member.gid, _content(archive, member))
    config: dict[str, Any] = json.loads((folder / manifest["Config"]).read_text())["config"]
    shutil.rmtree(folder)
    return Read(config, files)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    # RECORD lists the scripts of a package, which name whatever Python pip was run by; neither image keeps them.
    # A compiled file may differ in what its interpreter happened to share; its source is compared.
    if not member.isfile() or member.name.endswith((".pyc", ".dist-info/RECORD")):
        return member.linkname
    content = archive.extractfile(member)
    assert content is not None
    return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """buildah with a separate store, which has the two base images. Overlay mounts are needed, as for the clusters."""
    packages.require({"buildah": "buildah"}, quiet)
    folder = tmp_path_factory.mktemp("buildah")
    (folder / "temporary").mkdir()
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    # Only buildah is found, even if Docker is installed.
    programs = folder / "programs"
    programs.mkdir()
    for name in ("buildah", "git"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    environment = {
        **os.environ,
        "PATH": str(programs),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "BUILDAH_ISOLATION": "chroot",
        "TMPDIR": str(folder / "temporary"),
    }
    base = diflowimage.foundation(quiet)
    spec = importlib.util.find_spec("pip")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (pip,) = spec.submodule_search_locations
    layer = write_layer(folder / "pip.tar", tree(Path(pip), f"{SITE}/pip"))
    for image in (base, Image(INSTALLER, (*base.layers, layer), environment=base.environment)):
        with (folder / "image.tar").open("wb") as out:
            write_image(image, out)
        subprocess.run(
            ["buildah", "pull", "--quiet", f"docker-archive:{folder}/image.tar"], env=environment, check=True
        )
    yield environment
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def made(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a release of this checkout's current files, committed in a copy."""
    copy = tmp_path_factory.mktemp("release") / "diflow"
    _copy_and_commit(copy)
    flags = [
        *("--build-arg", f"BASE={diflowimage.foundation(quiet).reference}", "--build-arg", f"INSTALLER={INSTALLER}"),
        *("--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/mnt"),
        *("--volume", f"{diflowimage.wheels(quiet)}:/mnt:ro"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "cluster.release", "--compress", "1", "--", *flags],
        cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    folder = copy / "out" / "release"
    assert [Path(line) for line in done.stdout.splitlines()] == sorted(folder.iterdir())
    yield folder
    shutil.rmtree(copy)


def _copy_and_commit(copy: Path) -> None:
    def git(*arguments: str, cwd: Path = copy) -> str:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True
        ).stdout

    copy.mkdir()
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY).split("\0"):
        source, target = REPOSITORY / name, copy / name
        # A file may be listed that was removed and not committed yet.
        if name and (source.is_symlink() or source.is_file()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "a release")


@pytest.fixture(scope="module")
def image(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The image of the release."""
    with gzip.open(next(made.glob("*-image.tar.gz"))) as stream:
        return read(stream, tmp_path_factory.mktemp("image") / "read")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The image of the tests' clusters."""
    folder = tmp_path_factory.mktemp("own")
    with (folder / "image.tar").open("w+b") as stream:
        write_image(diflowimage.diflow_image(quiet), stream)
        stream.seek(0)
        found = read(stream, folder / "read")
    (folder / "image.tar").unlink()
    return found


live = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.xdist_group("image"), pytest.mark.timeout(1800)]


class TestBuilt:
    """What one build shows; `make unit` leaves it out, for it takes root and minutes."""

    pytestmark = live

    def test_a_release_is_a_wheel_an_sdist_an_image_the_notes_and_their_checksums(self, made: Path) -> None:
        version = diflowimage.version()
        assert {path.name for path in made.iterdir()} == {
            f"diflow-{version}-py3-none-any.whl", f"diflow-{version}.tar.gz", f"diflow-{version}-image.tar.gz",
            "NOTES.md", "SHA256SUMS",
        }  # fmt: skip
        command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
        subprocess.run(command, cwd=made, check=True)
        assert len((made / "SHA256SUMS").read_text().splitlines()) == 4

    def test_the_image_is_configured_as_the_tests_own(self, image: Read, own: Read) -> None:
        for key in ("User", "Entrypoint", "Cmd", "WorkingDir", "Volumes", "ExposedPorts"):
            assert image.config.get(key) == own.config.get(key), key
        assert sorted(image.config["Env"]) == sorted(own.config["Env"])
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.config["User"])

    def test_it_has_the_same_packages_in_the_same_versions(self, image: Read, own: Read) -> None:
        assert len(own.distributions) > 40
        assert image.distributions == own.distributions

    def test_it_is_the_same_file_by_file(self, image: Read, own: Read) -> None:
        assert set(image.files) - LEFT_BY_BUILDAH == set(own.files) - LEFT_BY_BUILDAH
        different = [path for path, what in own.files.items() if image.files.get(path, what) != what]
        assert set(different) <= LEFT_BY_BUILDAH

    def test_it_says_what_it_is(self, image: Read) -> None:
        labels = {key.removeprefix("org.opencontainers.image."): value for key, value in image.config["Labels"].items()}
        assert labels["title"] == "diflow"
        assert labels["version"] == diflowimage.version()
        assert labels["licenses"] == "Apache-2.0"
        assert re.fullmatch(r"[0-9a-f]{40}", labels["revision"])


DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


def test_the_dockerfile_names_this_version() -> None:
    version = diflowimage.version()
    assert f"ARG VERSION={version}\n" in DOCKERFILE
    assert f"docker build -t {diflowimage.reference()} ." in DOCKERFILE


def test_its_base_is_pinned_and_can_be_another() -> None:
    assert re.search(r"^ARG BASE=python:3\.11\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${INSTALLER}", "${BASE}"}


def test_the_engine_is_sent_what_the_dockerfile_copies_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    copied = [re.split(r" +", line)[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    assert lines[1] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(
        name for names in copied for name in names
    )
