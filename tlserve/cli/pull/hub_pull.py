"""A model from a hub into the cache: whole or not at all, each file checked, whatever kills us on the way.

Owns the work folder `<cache>/.downloads/<org>--<name>/`, in which files that have come wait under the commit they are of, and the
one rename that makes the model appear. A commit that is there is not fetched again; another one is a new version, so that a
folder in the cache never changes what it holds. Refuses to know the hub's protocol (`hub_client`) and which files are wanted
(`hub_files`).
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
    """What of a hub is needed here; `hub_client.Hub` is one."""

    endpoint: str

    def describe(self, name: HubName) -> HubRepository:
        """Return what the hub says of `name`."""

    def fetch(self, name: HubName, commit: str, file: HubFile, target: Path, report: _Count) -> None:
        """Bring the bytes of `file` that `target` does not hold yet."""


class _Count(Protocol):
    def __call__(self, held: int, /) -> None: ...


@attrs.frozen
class _Wanted:
    """What is to be in the cache: these files of this commit."""

    name: HubName
    commit: str
    files: tuple[HubFile, ...]

    def described(self, version: str, endpoint: str) -> dict[str, object]:
        """Return the content of source.json."""
        return {
            "name": self.name.repository,
            "version": version,
            "from": f"{endpoint}/{self.name.repository}",
            "revision": self.name.revision,
            "commit": self.commit,
            "files": {file.path: file.hash for file in self.files},
        }


def pull_from_hub(hub: HubLike, name: HubName, gguf: str, cache: Path, report: Report) -> Path:
    """Return the folder of `name` in `cache`, fetched if that commit is not there; raises `DownloadFailed`, and then it is not.

    `gguf`: which GGUF file to take, where a repository has several.
    """
    repository = hub.describe(name)
    wanted = _Wanted(name, repository.commit, choose_files(repository.files, name.repository, gguf))
    try:
        return _found(wanted, cache) or _pull_locked(hub, wanted, cache, report)
    except OSError as error:
        raise DownloadFailed(f"cannot put {name} into {cache}: {error.strerror or error}") from error


def _found(wanted: _Wanted, cache: Path) -> Path | None:
    """Return the version that holds what is wanted, if there is one."""
    hashes = {file.path: file.hash for file in wanted.files}
    found = versions_of(cache, wanted.name.folder)
    return next(
        (m.path for m in found if m.source.get("commit") == wanted.commit and m.source.get("files") == hashes), None
    )


def _pull_locked(hub: HubLike, wanted: _Wanted, cache: Path, report: Report) -> Path:
    work = cache / ".downloads" / wanted.name.folder
    work.mkdir(parents=True, exist_ok=True)
    with locked(work / "lock", report):
        found = _found(wanted, cache)  # another pull may have brought it while this one waited
        if found is None:
            staged = _staging_folder(work, wanted)
            _fetch_all(hub, wanted, staged, report)
            found = _put_in_place(hub, wanted, staged, cache)
        shutil.rmtree(work / "commits", ignore_errors=True)
    return found


def _staging_folder(work: Path, wanted: _Wanted) -> Path:
    """Return the folder of the commit; what is left of other commits is removed."""
    commits = work / "commits"
    commits.mkdir(exist_ok=True)
    for other in commits.iterdir():
        if other.name != wanted.commit:
            shutil.rmtree(other)
    staged = commits / wanted.commit
    staged.mkdir(exist_ok=True)
    return staged


def _fetch_all(hub: HubLike, wanted: _Wanted, staged: Path, report: Report) -> None:
    """Fetch every file that is not there yet, checked; small ones first, so that a refusal comes early."""
    total = sum(file.size_bytes for file in wanted.files)
    missing = [file for file in sorted(wanted.files, key=lambda f: f.size_bytes) if not (staged / file.path).is_file()]
    check_space(str(wanted.name), sum(file.size_bytes for file in missing), staged)
    done = total - sum(file.size_bytes for file in missing)
    for file in missing:
        _fetch(hub, wanted, file, staged / file.path, lambda held, before=done: report(FETCH, before + held, total))
        done += file.size_bytes
    report(FETCH, total, total)


def _fetch(hub: HubLike, wanted: _Wanted, file: HubFile, place: Path, count: _Count) -> None:
    """Put one file into its place, or raise; what came of it so far waits beside it for the next pull."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + ".partial")
    hub.fetch(wanted.name, wanted.commit, file, partial, count)
    if not is_expected(partial, file):
        partial.unlink(missing_ok=True)
        raise DownloadFailed(
            f"what came for {file.path} of {wanted.name} is not the file that was expected (its hash differs)"
        )
    partial.replace(place)


def _put_in_place(hub: HubLike, wanted: _Wanted, staged: Path, cache: Path) -> Path:
    """Make the model appear, by one rename."""
    version = next_version(cache, wanted.name.folder)
    source = json.dumps(wanted.described(version, hub.endpoint), indent=2) + "\n"
    (staged / SOURCE).write_text(source, encoding="utf-8")
    place = cache / wanted.name.folder / version
    place.parent.mkdir(exist_ok=True)
    for folder in (staged, *(path for path in staged.rglob("*") if path.is_dir())):
        sync_folder(folder)
    staged.rename(place)
    sync_folder(place.parent)
    return place
