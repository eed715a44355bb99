"""Images: the same input gives the same bytes, and all files are readable by every user."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from cluster import diflowimage, pythonpackages, smallimages
from cluster.paths import REPOSITORY
from cluster.tarimage import Entry, Image, Layer, cached_layer, tree, write_image, write_layer, write_oci


def quiet(_: str) -> None:
    """Takes the place of progress."""


def a_tree(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "b.txt").write_text("b")
    (folder / "a.sh").write_text("#!/bin/sh\n")
    (folder / "a.sh").chmod(0o700)
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o600)
    (folder / "link").symlink_to("sub/b.txt")
    return folder


def test_a_layer_has_the_same_digest_whenever_and_in_whatever_order_it_is_made(tmp_path: Path) -> None:
    source = a_tree(tmp_path / "source")
    first = write_layer(tmp_path / "1.tar", tree(source, "opt"))
    for path in source.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    second = write_layer(tmp_path / "2.tar", reversed(list(tree(source, "opt"))))
    assert first.digest == second.digest
    assert hashlib.sha256(first.path.read_bytes()).hexdigest() == first.digest


def test_a_changed_byte_changes_the_digest(tmp_path: Path) -> None:
    source = a_tree(tmp_path / "source")
    before = write_layer(tmp_path / "1.tar", tree(source, "opt")).digest
    (source / "sub" / "b.txt").write_text("c")
    assert write_layer(tmp_path / "2.tar", tree(source, "opt")).digest != before


def test_files_of_a_layer_are_roots_and_readable_by_everyone(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "1.tar", tree(a_tree(tmp_path / "source"), "opt"))
    with tarfile.open(layer.path) as archive:
        modes = {member.name: member.mode for member in archive}
        assert all((member.uid, member.gid, member.mtime) == (0, 0, 0) for member in archive)
        assert archive.getmember("opt/link").linkname == "sub/b.txt"
    expected = {"opt": 0o755, "opt/sub": 0o755, "opt/a.sh": 0o755, "opt/secret": 0o644}
    assert {name: mode for name, mode in modes.items() if name in expected} == expected


def test_a_layer_that_fails_half_way_is_not_in_the_cache(tmp_path: Path) -> None:
    entries = [Entry("a", data=b"a"), Entry("b", source=tmp_path / "missing")]
    with pytest.raises(FileNotFoundError):
        write_layer(tmp_path / "1.tar", entries)
    assert cached_layer(tmp_path / "1.tar") is None
    assert list(tmp_path.iterdir()) == []


def an_image(folder: Path) -> Image:
    low = write_layer(folder / "low.tar", [Entry("low", data=b"low")])
    high = write_layer(folder / "high.tar", [Entry("high", data=b"high")])
    return Image("docker.io/x/y:1", (low, high), entrypoint=("/low",), environment={"A": "1"}, user="65532")


def test_an_image_file_names_its_layers_and_configuration_by_their_digests(tmp_path: Path) -> None:
    image = an_image(tmp_path)
    out = io.BytesIO()
    write_image(image, out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        content = {member.name: extracted.read() for member in archive if (extracted := archive.extractfile(member))}
    manifest = json.loads(content["manifest.json"])[0]
    assert manifest["RepoTags"] == ["docker.io/x/y:1"]
    configuration = json.loads(content[manifest["Config"]])
    assert configuration["config"]["User"] == "65532"
    found = [f"sha256:{hashlib.sha256(content[name]).hexdigest()}" for name in manifest["Layers"]]
    assert found == configuration["rootfs"]["diff_ids"]


def test_a_layer_that_the_reader_has_is_not_sent_again(tmp_path: Path) -> None:
    image = an_image(tmp_path)
    low, high = image.layers

    def sent(present: set[str]) -> set[str]:
        out = io.BytesIO()
        write_oci(image, out, present)
        out.seek(0)
        with tarfile.open(fileobj=out) as archive:
            return set(archive.getnames())

    assert sent(set()) - sent({low.digest}) == {f"blobs/sha256/{low.digest}"}
    assert f"blobs/sha256/{high.digest}" in sent({low.digest})


def test_every_blob_of_an_oci_stream_has_the_digest_that_it_is_named_by(tmp_path: Path) -> None:
    out = io.BytesIO()
    write_oci(an_image(tmp_path), out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        blobs = [member for member in archive if member.name.startswith("blobs/")]
        assert len(blobs) == 4
        for blob in blobs:
            extracted = archive.extractfile(blob)
            assert extracted is not None
            assert hashlib.sha256(extracted.read()).hexdigest() == blob.name.rpartition("/")[2]


def test_the_code_layer_follows_the_code_and_ignores_what_python_leaves_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(diflowimage, "REPOSITORY", tmp_path)
    (tmp_path / "diflow" / "workflows").mkdir(parents=True)
    (tmp_path / "diflow" / "workflows" / "a.py").write_text("A = 1\n")
    (tmp_path / "workflows").symlink_to("diflow/workflows")
    before = diflowimage._code(quiet)
    (tmp_path / "diflow" / "workflows" / "__pycache__").mkdir()
    (tmp_path / "diflow" / "workflows" / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert diflowimage._code(quiet) == before
    (tmp_path / "diflow" / "workflows" / "a.py").write_text("A = 2\n")
    assert diflowimage._code(quiet).digest != before.digest
    with tarfile.open(before.path) as archive:
        assert [name for name in archive.getnames() if name.endswith(".py")] == ["opt/diflow/diflow/workflows/a.py"]


def test_only_the_newest_code_layers_stay_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(diflowimage, "REPOSITORY", tmp_path)
    (tmp_path / "examples").mkdir()
    last: Layer | None = None
    for version in range(9):
        (tmp_path / "examples" / "a.py").write_text(f"A = {version}\n")
        last = diflowimage._code(quiet)
    left = list(smallimages.layers_folder().glob("code-*.tar"))
    assert len(left) == 5
    assert last is not None
    assert last.path in left


LOCK = """idna==3.0 \\
    --hash=sha256:00 \\
    --hash=sha256:01
    # via
    #   pytest
    #   requests
matplotlib==3.0 \\
    --hash=sha256:02
    # via diflow (pyproject.toml)
numpy==2.4.0 ; python_full_version < '3.12' \\
    --hash=sha256:03
    # via
    #   diflow (pyproject.toml)
    #   matplotlib
pluggy==1.0 \\
    --hash=sha256:04
    # via pytest
pytest==9.0 \\
    --hash=sha256:05
    # via diflow (pyproject.toml:dev)
prometheus-client==1.0 \\
    --hash=sha256:06
    # via diflow (pyproject.toml)
requests[socks]==2.0 \\
    --hash=sha256:07
    # via
    #   diflow (pyproject.toml)
    #   kubernetes
"""
PROJECT = {
    "project": {
        "dependencies": ["requests>=2"],
        "optional-dependencies": {
            "allocator": ["numpy", "Prometheus_Client>=1"],
            "server": ["prometheus-client>=1"],
            "examples": ["matplotlib"],
        },
    }
}


def test_the_images_packages_are_those_of_the_lock_file_with_their_hashes_and_tools_are_left_out() -> None:
    needed = pythonpackages.locked(PROJECT, LOCK)
    assert re.findall(r"^[a-z]\S*", needed, re.MULTILINE) == [
        "idna==3.0", "matplotlib==3.0", "numpy==2.4.0", "prometheus-client==1.0", "requests[socks]==2.0",
    ]  # fmt: skip
    assert needed.startswith("idna==3.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nmatplotlib")
    assert "numpy==2.4.0 ; python_full_version < '3.12' \\\n    --hash=sha256:03\n" in needed


def test_an_extra_that_is_not_asked_for_brings_no_package() -> None:
    assert "matplotlib" not in pythonpackages.locked(PROJECT, LOCK, ["allocator", "server"])
    assert "numpy" not in pythonpackages.locked(PROJECT, LOCK, ["server"])


def test_a_lock_file_that_is_older_than_a_requirement_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the lock file lacks requests: run `make lock`"):
        pythonpackages.locked(PROJECT, LOCK.partition("requests[")[0])


def test_a_cluster_has_the_busybox_that_the_examples_name() -> None:
    named = set[str]()
    for path in (REPOSITORY / "examples").glob("*/job.yaml"):
        named |= set(re.findall(r"image: (\S*busybox\S*)", path.read_text()))
    assert named
    assert named <= {image.reference for image in smallimages.busybox_images(lambda _: None)}
