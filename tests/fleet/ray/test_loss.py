"""A head that loses the control process of its cluster, as a separate program."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ray

PATIENCE_S = 60


@pytest.fixture(scope="module")
def loss():
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.fleet.ray_loss"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.spec("RAY-9")
def test_the_loss_of_the_control_process_is_reported_within_five_seconds(loss):
    assert loss["noticed_s"] < 5
    assert "is gone" in loss["lost"]


@pytest.mark.spec("RAY-9")
def test_a_stream_open_at_the_loss_is_finished_and_the_process_ends_cleanly(loss):
    assert loss["events"] == 501


@pytest.mark.spec("RAY-16")
def test_the_control_program_waits_for_its_nodes_and_then_says_why_it_ends(loss):
    assert "has ended by itself" in loss["control_said"]


@pytest.mark.spec("RAY-16")
def test_the_head_does_not_spin_when_the_control_process_is_gone(loss):
    assert loss["cpu_s"] < 0.5
