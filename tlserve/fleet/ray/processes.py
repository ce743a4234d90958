"""Ray's own processes on this machine: the control process of a cluster, or the processes by which a machine joins one.

Owns their start, their command lines, their ids and their end. Knows nothing of nodes and heads. All calls are
synchronous and can take some seconds: make them in a thread. Linux only, because it finds processes in /proc.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import attrs

from tlserve.config.environment import process_environ
from tlserve.errors import OperatorError
from tlserve.fleet.ray.keeper import KILL_GRACE_S, OUTPUT, TERM_GRACE_S, session_pids
from tlserve.fleet.ray.settings import RaySettings

START_LIMIT_S = 60.0
STOP_LIMIT_S = TERM_GRACE_S + KILL_GRACE_S + 5.0

ADDRESS_FILE = "ray_current_cluster"
"""Ray writes the address of the control process to this file of its directory."""

ACTOR_TITLE = b"ray::NodeActor"

REMEDY = "pip install 'tlserve[fleet]'"


class ClusterRefused(OperatorError):
    """The cluster cannot be used: Ray is missing, does not start, or refuses this process."""


@attrs.frozen(eq=False)
class ClusterProcesses:
    """Ray's processes on this machine; `address` is that of the control process, "host:port"."""

    address: str
    settings: RaySettings
    directory: Path
    keeper: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """Return the id of every process, including the actors."""
        return session_pids(self.keeper.pid)

    def actor_pids(self) -> list[int]:
        """Return the ids of the actors' processes: Ray gives them the name of the class."""
        return [pid for pid in self.pids() if ACTOR_TITLE in _title(pid)]

    def stop(self) -> None:
        """End every process, and remove their files; a second call does nothing."""
        self.keeper.terminate()
        _end_keeper(self.keeper)

    def __enter__(self) -> ClusterProcesses:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def make_token_file(path: Path) -> Path:
    """Write a new token that only its owner can read, unless there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secrets.token_hex(32))
    return path


def start_control(settings: RaySettings, *, port: int = 0) -> ClusterProcesses:
    """Start a cluster's control process, and the other processes of this machine; `port` 0 is any free one.

    Raises `SettingsError` for wrong settings, and `ClusterRefused` if it does not start.
    """
    settings.check()
    return _start(settings, "--head", f"--port={port}", "--include-dashboard=false", "--no-monitor")


def start_member(settings: RaySettings, address: str, node: str) -> ClusterProcesses:
    """Start the processes by which this machine joins the cluster at `address` as `node`.

    Not for 127.0.0.1, where all nodes use the processes that `start_control` started. Raises as it does.
    """
    settings.check()
    if settings.is_loopback:
        raise ClusterRefused(
            f"a cluster on {settings.node_ip} is on one machine only, and needs nothing but its control process"
        )
    return _start(settings, f"--address={address}", f"--resources={json.dumps({node_resource(node): 1})}")


def node_resource(node: str) -> str:
    """Return the resource by which Ray places a node's actor on the machine where the node was started."""
    return f"tlserve-node:{node}"


def _start(settings: RaySettings, *options: str) -> ClusterProcesses:
    _check_ray()
    directory = Path(tempfile.mkdtemp(prefix="tlserve-"))  # short: sockets are made in it
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tlserve.fleet.ray.keeper", str(directory), *_command(settings, directory, options)],
        env={**process_environ(), **settings.variables()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _wait_started(keeper, directory)
        address = (directory / ADDRESS_FILE).read_text(encoding="utf-8").strip()
    except BaseException:
        keeper.terminate()
        _end_keeper(keeper)
        raise
    return ClusterProcesses(address, settings, directory, keeper)


def _check_ray() -> None:
    if not sys.platform.startswith("linux"):
        raise ClusterRefused("the Ray link runs on Linux only; on this machine, list nodes by their URLs")
    if find_spec("ray") is None:
        raise ClusterRefused(f"the Ray link needs a package that is not installed: {REMEDY}")


def _command(settings: RaySettings, directory: Path, options: tuple[str, ...]) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start"),
        *options,
        f"--node-ip-address={settings.node_ip}",
        "--num-cpus=0",  # only our own actors run here
        "--num-gpus=0",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--temp-dir={directory}",
        f"--object-store-memory={settings.object_store_bytes}",
    ]


def _wait_started(keeper: subprocess.Popen[bytes], directory: Path) -> None:
    assert keeper.stdout is not None
    readable, _, _ = select.select([keeper.stdout], [], [], START_LIMIT_S)
    code = keeper.stdout.readline().strip() if readable else b"no answer"
    if code != b"0":
        raise ClusterRefused(f"Ray did not start ({code.decode()}): {_last_words(directory / OUTPUT)}")


def _last_words(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")


def _end_keeper(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        keeper.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
    keeper.stdin.close()
    keeper.stdout.close()
