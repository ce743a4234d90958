"""The settings of a cluster, and refusals before it starts."""

import sys
from pathlib import Path

import pytest

from tlserve.errors import SettingsError
from tlserve.fleet.ray import processes as ray_processes
from tlserve.fleet.ray.processes import ClusterRefused, make_token_file, start_control, start_member
from tlserve.fleet.ray.settings import RaySettings


@pytest.fixture
def token(tmp_path):
    return make_token_file(tmp_path / "token")


def test_a_token_is_made_once_and_readable_by_its_owner_only(token):
    text = token.read_text()
    assert make_token_file(token).read_text() == text
    assert token.stat().st_mode & 0o777 == 0o600
    RaySettings(token_file=token).check()


@pytest.mark.spec("RAY-7")
@pytest.mark.parametrize(
    ("node_ip", "reason"),
    [
        ("127.0.0.2", "supports no loopback address but 127.0.0.1"),
        ("::1", "supports no loopback address but 127.0.0.1"),
        ("0.0.0.0", "is not one machine's"),
        ("here", "is not an IP address"),
    ],
)
def test_an_address_that_ray_cannot_bind_everywhere_is_refused(token, node_ip, reason):
    with pytest.raises(SettingsError, match=reason):
        RaySettings(token_file=token, node_ip=node_ip).check()


@pytest.mark.spec("RAY-15")
@pytest.mark.parametrize("node_ip", ["127.0.0.1", "192.0.2.7"])
def test_nothing_starts_without_a_token(tmp_path, node_ip):
    with pytest.raises(SettingsError, match="cannot be read"):
        start_control(RaySettings(token_file=tmp_path / "none", node_ip=node_ip))


@pytest.mark.spec("RAY-15")
def test_a_weak_token_and_one_that_others_can_read_are_refused(token):
    token.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        RaySettings(token_file=token).check()
    token.write_text("aaaaaaaaaaaaaaaaaaaaaaaa")
    with pytest.raises(SettingsError, match="too weak"):
        RaySettings(token_file=token).check()


def test_all_refusals_are_reported_at_once(tmp_path):
    with pytest.raises(SettingsError) as error:
        RaySettings(token_file=tmp_path / "none", node_ip="here").check()
    assert len(error.value.refusals) == 2


@pytest.mark.spec("RAY-9")
def test_the_variables_require_the_token_and_outlast_the_longest_answer(token):
    variables = RaySettings(token_file=token, wall_s=600).variables()
    assert variables["RAY_AUTH_MODE"] == "token"
    assert Path(variables["RAY_AUTH_TOKEN_PATH"]) == token
    assert variables["RAY_gcs_rpc_server_reconnect_timeout_s"] == "900"


@pytest.mark.parametrize(("node_ip", "several_machines"), [("127.0.0.1", "0"), ("192.0.2.7", "1")])
def test_only_on_the_loopback_address_ray_runs_as_a_single_machine(token, node_ip, several_machines):
    variables = RaySettings(token_file=token, node_ip=node_ip).variables()
    assert variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == several_machines


def test_on_the_loopback_address_no_second_machine_takes_part(token):
    with pytest.raises(ClusterRefused, match="on one machine only"):
        start_member(RaySettings(token_file=token), "127.0.0.1:6379", "a")


@pytest.mark.spec("RAY-12")
def test_without_ray_or_linux_the_remedy_is_given(token, monkeypatch):
    monkeypatch.setattr(ray_processes, "find_spec", lambda name: None)
    with pytest.raises(ClusterRefused, match=r"pip install 'tlserve\[fleet\]'"):
        start_control(RaySettings(token_file=token))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ClusterRefused, match="Linux only"):
        start_control(RaySettings(token_file=token))


@pytest.mark.ray
@pytest.mark.spec("RAY-12")
def test_rays_own_reason_is_given_when_it_does_not_start(token):
    with pytest.raises(ClusterRefused, match="did not start"):
        start_control(RaySettings(token_file=token, object_store_bytes=1))
