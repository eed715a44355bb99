"""A release before the build: the version's notes, its checksums, and what is refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cluster import diflowimage, release
from cluster.errors import ClusterError, UsageError
from cluster.paths import REPOSITORY

CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2026-11-23

### Added

- A release.

## [0.1.0] - 2026-11-21

- The first.

[0.2.0]: https://example.invalid/0.2.0
[0.1.0]: https://example.invalid/0.1.0
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "a.py").write_text("A = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_the_notes_are_the_section_of_the_version_and_nothing_else() -> None:
    assert release.notes(CHANGELOG, "0.2.0") == "### Added\n\n- A release.\n"


def test_the_links_at_the_end_belong_to_no_version() -> None:
    assert release.notes(CHANGELOG, "0.1.0") == "- The first.\n"


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        ("## [0.1.0] - 2026-11-21\n\n- The first.\n", r"has no section for 0\.2\.0.*## \[0\.2\.0\] - YYYY-MM-DD"),
        ("## [0.2.0]\n\n- A release.\n", r"gives no date to 0\.2\.0"),
        ("## [0.2.0] - soon\n\n- A release.\n", r"gives no date to 0\.2\.0"),
        ("## [0.2.0] - 2026-11-23\n\n## [0.1.0] - 2026-11-21\n", r"says nothing of 0\.2\.0"),
        ("## [10.2.0] - 2026-11-23\n\n- Another.\n", r"has no section for 0\.2\.0"),
    ],
)
def test_a_changelog_without_the_version_is_refused_with_a_sentence(changelog: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        release.notes(changelog, "0.2.0")


def test_the_changelog_has_dated_sections_the_newest_first_and_one_for_this_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    dates = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d{2}-\d{2})", heading) for heading in headings[1:]]
    assert all(dates), headings
    found = [date[1] for date in dates if date]
    assert found == sorted(found, reverse=True)
    assert release.notes(text, diflowimage.version())


def test_the_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    sums = release.checksums(tmp_path.iterdir())
    assert [line.split("  ")[1] for line in sums.splitlines()] == ["a.tar.gz", "b.whl"]
    (tmp_path / "SHA256SUMS").write_text(sums)
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "a.tar.gz").write_text("changed")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode != 0


def test_the_commit_of_a_clean_tree_is_named(repository: Path) -> None:
    assert release.refuse_changes(repository) == git(repository, "rev-parse", "HEAD")


def test_a_changed_or_a_new_file_stops_the_release(repository: Path) -> None:
    (repository / "new.py").write_text("")
    with pytest.raises(UsageError, match=r"the tree is dirty: commit or remove new\.py, then"):
        release.refuse_changes(repository)
    (repository / "new.py").unlink()
    (repository / "a.py").write_text("A = 2\n")
    with pytest.raises(UsageError, match=r"the tree is dirty: commit or remove a\.py, then"):
        release.refuse_changes(repository)


def test_a_folder_that_is_no_checkout_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="`git status --porcelain` failed"):
        release.refuse_changes(tmp_path)


def test_a_tag_of_another_version_is_refused() -> None:
    release.refuse_tag("v0.2.0", "0.2.0")
    with pytest.raises(UsageError, match=r"the tag is v0\.3\.0, but .* the tag for it is v0\.2\.0"):
        release.refuse_tag("v0.3.0", "0.2.0")


def test_without_an_engine_it_is_said_what_to_install(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(release, "REPOSITORY", repository)
    version = diflowimage.version()
    (repository / "CHANGELOG.md").write_text(f"## [{version}] - 2026-11-23\n\n- A release.\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "changelog")
    monkeypatch.setattr("cluster.release.shutil.which", lambda _: None)
    with pytest.raises(ClusterError, match="docker or buildah is needed"):
        release.release(tmp_path / "release", None, [], lambda _: None)
    assert not (tmp_path / "release").exists()


def test_a_request_that_cannot_be_met_ends_with_a_sentence_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--tag", "v0.0.0"]) == 2
    assert capsys.readouterr().err.startswith("error: the tag is v0.0.0, but ")
