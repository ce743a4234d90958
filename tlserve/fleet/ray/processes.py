"""Ray's own processes on this machine: the control process of a cluster, or what lets a machine take part in one.

Owns their start, their command lines, their ids and their end. Refuses to know nodes and heads. All of it is synchronous and may
take some seconds: call it in a thread. Linux only, for it finds processes in /proc.
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
    """There is no cluster as it was asked for: Ray is not here, does not start, or does not let this process in."""


@attrs.frozen(eq=False)
class ClusterProcesses:
    """What runs on this machine for the cluster; `address` is that of its control process, "host:port"."""

    address: str
    settings: RaySettings
    directory: Path
    keeper: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """Return the id of every process, the actors included."""
        return session_pids(self.keeper.pid)

    def actor_pids(self) -> list[int]:
        """Return the ids of the actors' processes: Ray gives them the name of the class."""
        return [pid for pid in self.pids() if ACTOR_TITLE in _title(pid)]

    def stop(self) -> None:
        """End every process, and remove what they wrote; called again it does nothing."""
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
    """Write a new token that only its owner may read, unless there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secrets.token_hex(32))
    return path


def start_control(settings: RaySettings, *, port: int = 0) -> ClusterProcesses:
    """Start a cluster's control process, and what this machine needs to take part; `port` 0 is any free one.

    Raises `SettingsError` for what the settings say wrong, and `ClusterRefused` when it does not start.
    """
    settings.check()
    return _start(settings, "--head", f"--port={port}", "--include-dashboard=false", "--no-monitor")


def start_member(settings: RaySettings, address: str, node: str) -> ClusterProcesses:
    """Start what this machine needs to take part in the cluster at `address` as `node`.

    Not for 127.0.0.1, where everybody takes part through what `start_control` started. Raises as it does.
    """
    settings.check()
    if settings.is_loopback:
        raise ClusterRefused(f"a cluster on {settings.node_ip} is one machine's: its control process is enough")
    return _start(settings, f"--address={address}", f"--resources={json.dumps({node_resource(node): 1})}")


def node_resource(node: str) -> str:
    """Return the resource by which Ray places a node's actor on the machine that it was started on."""
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
        raise ClusterRefused("the Ray link runs on Linux only: here, join nodes by their URLs")
    if find_spec("ray") is None:
        raise ClusterRefused(f"the Ray link needs a package that is not here: {REMEDY}")


def _command(settings: RaySettings, directory: Path, options: tuple[str, ...]) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start"),
        *options,
        f"--node-ip-address={settings.node_ip}",
        "--num-cpus=0",  # nothing but the actors that we place runs here
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
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


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
