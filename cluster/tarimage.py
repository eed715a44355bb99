"""Container images as plain tar streams, the same bytes for the same input.

An image is a list of layers, each an uncompressed tar file in the cache with its digest, and a small configuration. The
stream to load is generated without the layers that the reader has: a change of the last layer does not transfer the
large ones below it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

# Files in an image have a fixed time, so that equal content has equal digests.
_MTIME = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link of a layer, at `path` below the image's root. Contents come from `source` or `data`."""

    path: str
    mode: int = 0o644
    data: bytes | None = None
    source: Path | None = None
    link: str | None = None
    uid: int = 0
    gid: int = 0

    @property
    def is_folder(self) -> bool:
        return self.data is None and self.source is None and self.link is None


@dataclass(frozen=True, slots=True)
class Layer:
    """An uncompressed tar file in the cache and the SHA-256 of its bytes."""

    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image for `ctr image import`."""

    reference: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = ""

    @property
    def configuration(self) -> bytes:
        """The image's configuration; its digest is the image's identity."""
        inner: dict[str, object] = {"Env": [f"{k}={v}" for k, v in sorted(self.environment.items())]}
        optional = {"Entrypoint": self.entrypoint, "Cmd": self.command, "User": self.user, "WorkingDir": self.folder}
        inner |= {k: list(v) if isinstance(v, tuple) else v for k, v in optional.items() if v}
        whole = {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": inner,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in self.layers]},
        }
        return json.dumps(whole, sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.configuration).hexdigest()


def tree(source: Path, target: str, keep: Callable[[str], bool] = lambda _: True) -> Iterator[Entry]:
    """All files below `source` as entries below `target`, world-readable. `keep` filters paths relative to `source`."""
    if target:
        yield Entry(target, 0o755)
    for folder, folders, files in os.walk(source):
        base = Path(folder)
        folders[:] = sorted(f for f in folders if keep(str((base / f).relative_to(source))))
        for name in [*folders, *sorted(files)]:
            path = base / name
            relative = str(path.relative_to(source))
            if not keep(relative):
                continue
            place = f"{target}/{relative}".lstrip("/")
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield Entry(place, 0o777, link=os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                yield Entry(place, 0o755)
            elif stat.S_ISREG(status.st_mode):
                yield Entry(place, 0o755 if status.st_mode & 0o111 else 0o644, source=path)


def write_layer(path: Path, entries: Iterable[Entry]) -> Layer:
    """Writes a layer and, beside it, its digest, both atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    unique = {entry.path.strip("/"): entry for entry in entries}
    try:
        with staged.open("wb") as raw:
            hashing = _Hashing(raw)
            with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for place in sorted(unique):
                    _add(archive, place, unique[place])
        digest = hashing.sha.hexdigest()
        staged.rename(path)
        digest_file = path.with_suffix(".sha256")
        staged.write_text(digest)
        staged.rename(digest_file)
    finally:
        staged.unlink(missing_ok=True)
    return Layer(path, digest)


def cached_layer(path: Path) -> Layer | None:
    """A layer that was written before; None if there is none."""
    digest_file = path.with_suffix(".sha256")
    if path.exists() and digest_file.exists():
        return Layer(path, digest_file.read_text())
    return None


def write_image(image: Image, out: IO[bytes]) -> None:
    """Streams the image in the format of `docker save`."""
    configuration = image.configuration
    configuration_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = [
        {
            "Config": configuration_name,
            "RepoTags": [image.reference],
            "Layers": [f"{layer.digest}.tar" for layer in image.layers],
        }
    ]
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, configuration_name, Entry(configuration_name, data=configuration))
        for layer in image.layers:
            _add(archive, f"{layer.digest}.tar", Entry(layer.digest, source=layer.path))
        _add(archive, "manifest.json", Entry("manifest.json", data=json.dumps(manifest).encode()))


def write_oci(image: Image, out: IO[bytes], present: Container[str] = ()) -> None:
    """Streams the image as an OCI layout, without the layers in `present`, which the reader already has."""
    configuration = image.configuration
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _OCI_MANIFEST,
            "config": _descriptor("application/vnd.oci.image.config.v1+json", image.digest, len(configuration)),
            "layers": [
                _descriptor("application/vnd.oci.image.layer.v1.tar", layer.digest, layer.path.stat().st_size)
                for layer in image.layers
            ],
        },
        sort_keys=True,
    ).encode()
    manifest_digest = hashlib.sha256(manifest).hexdigest()
    listed = _descriptor(_OCI_MANIFEST, manifest_digest, len(manifest))
    listed["annotations"] = {"io.containerd.image.name": image.reference}
    index = json.dumps({"schemaVersion": 2, "manifests": [listed]}, sort_keys=True).encode()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", Entry("", data=b'{"imageLayoutVersion": "1.0.0"}'))
        for layer in image.layers:
            if layer.digest not in present:
                _add(archive, f"blobs/sha256/{layer.digest}", Entry("", source=layer.path))
        _add(archive, f"blobs/sha256/{image.digest}", Entry("", data=configuration))
        _add(archive, f"blobs/sha256/{manifest_digest}", Entry("", data=manifest))
        _add(archive, "index.json", Entry("", data=index))


_OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _add(archive: tarfile.TarFile, place: str, entry: Entry) -> None:
    info = tarfile.TarInfo(place)
    info.mtime = _MTIME
    info.mode = entry.mode
    info.uid, info.gid = entry.uid, entry.gid
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(info)
    elif entry.is_folder:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif entry.source is not None:
        info.size = entry.source.stat().st_size
        with entry.source.open("rb") as content:
            archive.addfile(info, content)
    else:
        data = entry.data or b""
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


class _Hashing(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.sha = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        content = bytes(memoryview(data))  # type: ignore[arg-type]
        self.sha.update(content)
        return self._target.write(content)
