"""A model from a hub into the cache: completely or not at all, each file checked, even if the process is killed.

Owns the work folder `<cache>/.downloads/<org>--<name>/`, which keeps fetched files by their commit, and the one rename that makes
the model appear. A commit that is in the cache is not fetched again; another one becomes a new version, so that a folder in the
cache never changes. Does not know the hub's protocol (`hub_client`) and which files are needed (`hub_files`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Protocol

import attrs

from tlserve.cli.pull.fetch_model import FETCH, Report, check_space, locked, sync_folder
from tlserve.cli.pull.hub_client import HubRepository
from tlserve.cli.pull.hub_files import HubFile, choose_files, is_expected
from tlserve.config.hub_names import HubName
from tlserve.config.paths import SOURCE, next_version, versions_of
from tlserve.errors import DownloadFailed


class HubLike(Protocol):
    """The part of a hub that is needed here; `hub_client.Hub` is one."""

    endpoint: str

    def describe(self, name: HubName) -> HubRepository:
        """Return the repository `name`."""

    def fetch(self, name: HubName, commit: str, file: HubFile, target: Path, report: _Count) -> None:
        """Fetch the bytes of `file` that `target` does not have yet."""


class _Count(Protocol):
    def __call__(self, held: int, /) -> None: ...


@attrs.frozen
class _CommitFiles:
    """The files of a commit that the cache must have."""

    name: HubName
    commit: str
    files: tuple[HubFile, ...]

    def described(self, version: str, endpoint: str) -> dict[str, object]:
        """Return the contents of source.json."""
        return {
            "name": self.name.repository,
            "version": version,
            "from": f"{endpoint}/{self.name.repository}",
            "revision": self.name.revision,
            "commit": self.commit,
            "files": {file.path: file.hash for file in self.files},
        }


def pull_from_hub(hub: HubLike, name: HubName, gguf: str, cache: Path, report: Report) -> Path:
    """Return the folder of `name` in `cache`, fetched if that commit is not there; raises `DownloadFailed`.

    `gguf`: the GGUF file to fetch, if the repository has several.
    """
    repository = hub.describe(name)
    chosen = _CommitFiles(name, repository.commit, choose_files(repository.files, name.repository, gguf))
    try:
        return _found(chosen, cache) or _pull_locked(hub, chosen, cache, report)
    except OSError as error:
        raise DownloadFailed(f"cannot put {name} into {cache}: {error.strerror or error}") from error


def _found(chosen: _CommitFiles, cache: Path) -> Path | None:
    """Return the version that has these files, if there is one."""
    hashes = {file.path: file.hash for file in chosen.files}
    found = versions_of(cache, chosen.name.folder)
    return next(
        (m.path for m in found if m.source.get("commit") == chosen.commit and m.source.get("files") == hashes), None
    )


def _pull_locked(hub: HubLike, chosen: _CommitFiles, cache: Path, report: Report) -> Path:
    work = cache / ".downloads" / chosen.name.folder
    work.mkdir(parents=True, exist_ok=True)
    with locked(work / "lock", report):
        found = _found(chosen, cache)  # another pull can have fetched it while this one waited
        if found is None:
            staged = _staging_folder(work, chosen)
            _fetch_all(hub, chosen, staged, report)
            found = _put_in_place(hub, chosen, staged, cache)
        shutil.rmtree(work / "commits", ignore_errors=True)
    return found


def _staging_folder(work: Path, chosen: _CommitFiles) -> Path:
    """Return the folder of the commit; the folders of other commits are removed."""
    commits = work / "commits"
    commits.mkdir(exist_ok=True)
    for other in commits.iterdir():
        if other.name != chosen.commit:
            shutil.rmtree(other)
    staged = commits / chosen.commit
    staged.mkdir(exist_ok=True)
    return staged


def _fetch_all(hub: HubLike, chosen: _CommitFiles, staged: Path, report: Report) -> None:
    """Fetch and check every missing file, small ones first, so that an error comes early."""
    total = sum(file.size_bytes for file in chosen.files)
    missing = [file for file in sorted(chosen.files, key=lambda f: f.size_bytes) if not (staged / file.path).is_file()]
    check_space(str(chosen.name), sum(file.size_bytes for file in missing), staged)
    done = total - sum(file.size_bytes for file in missing)
    for file in missing:
        _fetch(hub, chosen, file, staged / file.path, lambda held, before=done: report(FETCH, before + held, total))
        done += file.size_bytes
    report(FETCH, total, total)


def _fetch(hub: HubLike, chosen: _CommitFiles, file: HubFile, place: Path, count: _Count) -> None:
    """Put one file into its place; the part of an interrupted download stays next to it for the next pull."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + ".partial")
    hub.fetch(chosen.name, chosen.commit, file, partial, count)
    if not is_expected(partial, file):
        partial.unlink(missing_ok=True)
        raise DownloadFailed(
            f"the file fetched for {file.path} of {chosen.name} is not the expected one (its hash differs)"
        )
    partial.replace(place)


def _put_in_place(hub: HubLike, chosen: _CommitFiles, staged: Path, cache: Path) -> Path:
    """Make the model appear by one rename."""
    version = next_version(cache, chosen.name.folder)
    source = json.dumps(chosen.described(version, hub.endpoint), indent=2) + "\n"
    (staged / SOURCE).write_text(source, encoding="utf-8")
    place = cache / chosen.name.folder / version
    place.parent.mkdir(exist_ok=True)
    for folder in (staged, *(path for path in staged.rglob("*") if path.is_dir())):
        sync_folder(folder)
    staged.rename(place)
    sync_folder(place.parent)
    return place
