"""`make release`: all published files of a version, in one folder.

Wheel, sdist, the image in the format of `docker save`, the notes from CHANGELOG.md, and the SHA-256 of each. Errors are
reported before anything is built.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster import diflowimage
from cluster.errors import ClusterError, UsageError
from cluster.paths import REPOSITORY
from cluster.progress import Progress, reporter

NOTES = "NOTES.md"
SUMS = "SHA256SUMS"
_HEADING = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?(?: - (?P<date>\S+))?\s*$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Links such as `[0.2.0]: https://...` at the end of a changelog do not belong to a version.
_LINK = re.compile(r"^\[[^\]]+\]: \S+\s*\Z", re.MULTILINE)
_PACKED_LEVEL = 6
_PIECE = 1 << 20


def notes(changelog: str, version: str) -> str:
    """The changelog's section of this version, without its heading."""
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading["version"] != version:
            continue
        if heading["date"] is None or not _DATE.fullmatch(heading["date"]):
            raise UsageError(f"CHANGELOG.md gives no date to {version}: write `## [{version}] - YYYY-MM-DD`")
        text = changelog[heading.end() : following.start() if following else len(changelog)]
        while (shorter := _LINK.sub("", text.rstrip())) != text:
            text = shorter
        if not text.strip():
            raise UsageError(f"CHANGELOG.md says nothing of {version}: its section is empty")
        return text.strip() + "\n"
    raise UsageError(
        f"CHANGELOG.md has no section for {version}, the version in diflow/version.py: "
        f"write `## [{version}] - YYYY-MM-DD` above what is new in it"
    )


def checksums(files: Iterable[Path]) -> str:
    """A line for each file in the format of `sha256sum --check`."""
    lines = []
    for path in sorted(files, key=lambda p: p.name):
        with path.open("rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


def refuse_changes(repository: Path) -> str:
    """The commit to release. Raises UsageError for uncommitted changes, as the release would not be reproducible."""
    changed = _git(repository, "status", "--porcelain").splitlines()
    if changed:
        paths = ", ".join(line[3:] for line in changed[:5]) + (", ..." if len(changed) > 5 else "")
        raise UsageError(f"the tree is dirty: commit or remove {paths}, then run the command again")
    return _git(repository, "rev-parse", "HEAD").strip()


def refuse_tag(tag: str, version: str) -> None:
    """Raises UsageError if the tag is not that of the version."""
    if tag != f"v{version}":
        raise UsageError(f"the tag is {tag}, but diflow/version.py says {version}: the tag for it is v{version}")


def release(
    folder: Path, tag: str | None, flags: Sequence[str], progress: Progress, *, level: int = _PACKED_LEVEL
) -> list[Path]:
    """Recreates the folder; `flags` are passed to the engine that builds the image. `level`: of the archive's gzip."""
    version = diflowimage.version()
    if tag is not None:
        refuse_tag(tag, version)
    text = notes((REPOSITORY / "CHANGELOG.md").read_text(), version)
    commit = refuse_changes(REPOSITORY)
    engine = _engine()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=folder.parent) as name:
        staged = Path(name) / "release"
        staged.mkdir()
        progress("building the sdist, and the wheel of it")
        _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(staged), str(REPOSITORY)])
        progress(f"building the image with {engine}")
        labels = ["--build-arg", f"VERSION={version}", "--build-arg", f"REVISION={commit}"]
        archive = staged / f"diflow-{version}-image.tar.gz"
        _build_image(engine, [*labels, *flags], archive, level)
        (staged / NOTES).write_text(text)
        (staged / SUMS).write_text(checksums(staged.iterdir()))
        shutil.rmtree(folder, ignore_errors=True)
        staged.rename(folder)
    return sorted(folder.iterdir())


def _engine() -> str:
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        return "docker"
    if shutil.which("buildah"):
        return "buildah"
    raise ClusterError("docker or buildah is needed to build the image: apt-get install buildah")


def _build_image(engine: str, flags: Sequence[str], archive: Path, level: int) -> None:
    reference = diflowimage.reference()
    _run([engine, "build", "--tag", reference, *flags, str(REPOSITORY)])
    unpacked = archive.with_suffix("")
    if engine == "docker":
        _run(["docker", "save", "--output", str(unpacked), reference])
    else:
        _run(["buildah", "push", "--quiet", reference, f"docker-archive:{unpacked}:{reference}"])
    # Without a timestamp or file name, so that equal images give equal files.
    with (
        unpacked.open("rb") as source,
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", level, raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, _PIECE)
    unpacked.unlink()


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ClusterError("git is missing: a release is made of a commit") from None
    if done.returncode != 0:
        raise ClusterError(f"`git {' '.join(arguments)}` failed in {repository}: {done.stderr.strip()}")
    return done.stdout


def _run(command: list[str]) -> None:
    """Runs a program with its stdout on stderr, as stdout is for the paths."""
    done = subprocess.run(command, cwd=REPOSITORY, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` ended with {done.returncode}; what it said is above")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the paths of the files; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m cluster.release", description="Make all files of a release.")
    parser.add_argument("--tag", help="refuse unless this is the version's tag")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "out" / "release", metavar="FOLDER")
    parser.add_argument(
        "--compress", type=int, choices=range(1, 10), default=_PACKED_LEVEL, metavar="LEVEL",
        help="of gzip, from 1 to 9, for the image (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("flags", nargs="*", help="after `--`: for `docker build` or `buildah build`")
    options = parser.parse_args(arguments)
    try:
        made = release(options.output.absolute(), options.tag, options.flags, reporter(), level=options.compress)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(*made, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
