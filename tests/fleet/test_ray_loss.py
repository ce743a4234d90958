"""Programs around a cluster, each a process of its own: one that loses the control process, and some that are not let in."""

import json
import subprocess
import sys

import pytest

from tests.kit.ray_cluster import running_cluster
from tlserve.config.environment import process_environ
from tlserve.fleet.ray_processes import make_token_file

PATIENCE_S = 60
JOIN_WITH_ANOTHER_TOKEN = """
import sys, pathlib, trio
from tlserve.fleet.ray_cluster import join_cluster
from tlserve.fleet.ray_processes import ClusterRefused
from tlserve.fleet.ray_settings import RaySettings
async def join():
    async with join_cluster(RaySettings(token_file=pathlib.Path(sys.argv[2])), sys.argv[1]):
        print("joined")
try:
    trio.run(join)
except ClusterRefused as refusal:
    print(refusal.message)
"""
JOIN_WITHOUT_A_TOKEN = """
import sys, ray
try:
    ray.init(address=sys.argv[1], _node_ip_address="127.0.0.1", log_to_driver=False)
    print("joined")
except Exception as refusal:
    print(type(refusal).__name__)
"""
OF_NO_TOKEN = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "3"}


@pytest.fixture(scope="module")
def loss():
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.ray_loss"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_loss_of_the_control_process_is_told_within_five_seconds(loss):
    assert loss["noticed_s"] < 5
    assert "is gone" in loss["lost"]


def test_a_stream_that_is_open_then_is_finished_and_the_process_ends_cleanly(loss):
    assert loss["events"] == 501


def test_the_head_does_not_spin_when_the_control_process_is_gone(loss):
    assert loss["cpu_s"] < 0.5


def test_who_has_no_token_or_another_one_is_not_let_in(tmp_path):
    other = make_token_file(tmp_path / "token")
    with running_cluster() as cluster:
        programs = [
            _start(JOIN_WITH_ANOTHER_TOKEN, {}, cluster.address, str(other)),
            _start(JOIN_WITHOUT_A_TOKEN, OF_NO_TOKEN, cluster.address),
        ]
        said = [program.communicate(timeout=PATIENCE_S)[0].strip() for program in programs]
    assert f"has it the token of {other}" in said[0]
    assert said[1] in {"AuthenticationError", "ConnectionError", "RuntimeError"}


def _start(program, environment, *arguments):
    variables = {name: value for name, value in process_environ().items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
