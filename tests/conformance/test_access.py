"""Keys, TLS and Unix sockets as users see them: a whole server, the official client, real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from pathlib import Path

import openai
import pytest

from tests.kit.http.certificates import Certificates
from tests.kit.http.http_calls import call, chat, get, post
from tlserve.errors import SettingsError
from tlserve.testing import serve_in_thread

CHAT = "/v1/chat/completions"
KEY = "sk-0123456789-abcdef"
OTHER = "sk-fedcba-9876543210"
HEADERS = {"Authorization": f"Bearer {KEY}"}

KEYS = f"""
[[keys]]
name = "ci"
key = "{KEY}"
requests_per_minute = 3

[[keys]]
name = "old"
key = "{OTHER}"
expires = 2020-01-01
"""


@pytest.fixture(scope="module")
def guarded_server():
    with serve_in_thread("succ", settings={"access.api_key": KEY}) as server:
        yield server


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(KEYS, encoding="utf-8")
    return path


def client_of(server, key, **options):
    return openai.OpenAI(base_url=server.base_url, api_key=key, max_retries=0, **options)


def ask(client):
    messages = [{"role": "user", "content": "a"}]
    return client.chat.completions.create(model="succ", messages=messages, max_tokens=3, temperature=0)


def test_the_official_client_is_accepted_with_the_right_key(guarded_server):
    with client_of(guarded_server, KEY) as client:
        assert ask(client).choices[0].message.content == "bcd"
        assert [model.id for model in client.models.list()] == ["succ"]


def test_the_official_client_raises_its_own_error_for_a_wrong_key(guarded_server):
    with (
        client_of(guarded_server, "sk-wrong-wrong-wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        ask(client)
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (
        401,
        "invalid_api_key",
        "authentication_error",
    )


def test_the_official_client_raises_its_own_errors_for_403_and_429(keys_file):
    with serve_in_thread("succ", settings={"access.keys_file": str(keys_file)}) as server:
        with client_of(server, OTHER) as client, pytest.raises(openai.PermissionDeniedError):
            ask(client)
        with client_of(server, KEY) as client:
            for _ in range(3):
                ask(client)
            with pytest.raises(openai.RateLimitError) as caught:
                ask(client)
        assert caught.value.code == "rate_limit_exceeded"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 61
        assert caught.value.response.headers["x-ratelimit-limit-requests"] == "3"


@pytest.mark.spec("ACC-2")
@pytest.mark.parametrize("target", ["//v1/models", "/v1/../metrics", "/V1/models", "/v1/models/", "/v1%2Fmodels"])
def test_no_spelling_of_a_path_avoids_the_key(guarded_server, target):
    host, _, port = guarded_server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 404 "))
    assert b"succ" not in answer


@pytest.mark.spec("ACC-41")
def test_liveness_and_the_health_port_need_no_key(guarded_server):
    assert get(guarded_server.address, "/healthz").status == 200
    for path in ("/healthz", "/readyz", "/metrics"):
        assert get(guarded_server.health_address, path).status == 200


@pytest.mark.spec("ACC-57")
def test_metrics_need_a_key_with_that_setting_and_probes_do_not():
    settings = {"access.api_key": KEY, "access.metrics_need_key": True}
    with serve_in_thread("succ", settings=settings) as server:
        shut = get(server.health_address, "/metrics")
        assert (shut.status, shut.headers["www-authenticate"].split()[0]) == (401, "Bearer")
        assert b"tl_engine" not in shut.body
        opened = call(server.health_address, "GET", "/metrics", headers=HEADERS)
        assert opened.status == 200
        assert b"tl_engine" in opened.body
        assert get(server.health_address, "/readyz").status == 200


@pytest.mark.spec("ACC-25")
def test_a_client_address_has_a_limit_without_any_key():
    with serve_in_thread("succ", settings={"access.address_requests_per_minute": 2}) as server:
        assert [get(server.address, "/v1/models").status for _ in range(3)] == [200, 200, 429]
        assert get(server.address, "/healthz").status == 200


# --- settings that keep a server from starting


@pytest.mark.spec("ACC-40")
@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0"])
def test_a_public_server_without_keys_does_not_start(address):
    with (
        pytest.raises(SettingsError, match=r"allow_public = true"),
        serve_in_thread("succ", settings={"engine.http_listen": address}),
    ):
        pass


@pytest.mark.spec("ACC-40")
@pytest.mark.parametrize("remedy", [{"access.allow_public": True}, {"access.api_key": KEY}])
def test_each_remedy_lets_it_start(remedy):
    with serve_in_thread("succ", settings={"engine.http_listen": "0.0.0.0:0", **remedy}) as server:
        port = server.address.rpartition(":")[2]
        assert get(f"127.0.0.1:{port}", "/healthz").status == 200


BAD_STARTS = {
    "a keys file that is not there": ({"access.keys_file": "nowhere.toml"}, "access.keys_file: nowhere.toml"),
    "a key under limits in the file": ({"access.api_key": KEY}, "where it has limits: use another key"),
    "metrics without keys": ({"access.keys_file": "", "access.metrics_need_key": True}, "there are no keys"),
    "a private key alone": ({"tls.key": "key.pem"}, "tls.key is given without tls.certificate"),
    "a certificate that is not there": ({"tls.certificate": "nowhere.pem"}, "tls: nowhere.pem: No such file"),
}


@pytest.mark.spec("ACC-8", "ACC-48")
@pytest.mark.parametrize("name", BAD_STARTS)
def test_wrong_settings_are_reported_before_the_server_listens(name, keys_file):
    settings, words = BAD_STARTS[name]
    given = {"access.keys_file": str(keys_file), **settings}
    with pytest.raises(SettingsError, match=words) as caught, serve_in_thread("succ", settings=given):
        pass
    assert KEY not in str(caught.value)


# --- TLS and Unix sockets


@pytest.fixture
def made(tmp_path):
    return Certificates(tmp_path)


def tls_settings(made):
    return {"tls.certificate": str(made.certificate), "tls.key": str(made.key)}


def test_the_official_client_speaks_tls_and_streams(made):
    with (
        serve_in_thread("succ", settings={**tls_settings(made), "access.api_key": KEY}) as server,
        openai.DefaultHttpxClient(verify=made.client_context()) as transport,
        client_of(server, KEY, http_client=transport) as client,
    ):
        assert server.base_url.startswith("https://")
        assert ask(client).choices[0].message.content == "bcd"
        messages = [{"role": "user", "content": "a"}]
        stream = client.chat.completions.create(
            model="succ", messages=messages, max_tokens=5, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "bcdef"
        server.drain()
        assert server.join() == 0


def test_a_client_that_does_not_trust_the_certificate_does_not_connect(made):
    with serve_in_thread("succ", settings=tls_settings(made)) as server:
        host, _, port = server.address.rpartition(":")
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            connection.request("GET", "/healthz")
        assert post(server.health_address, "/healthz", {}).status == 405  # the health port speaks plain HTTP


class UnixConnection(http.client.HTTPConnection):
    """The standard library's client over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@pytest.mark.spec("HTTP-65")
def test_a_server_on_a_unix_socket_answers_and_removes_its_file(tmp_path_factory):
    path = Path(tmp_path_factory.mktemp("u")) / "api.sock"
    with serve_in_thread("succ", settings={"engine.http_listen": f"unix:{path}"}) as server:
        assert server.address == f"unix:{path}"
        connection = UnixConnection(str(path))
        connection.request("POST", CHAT, json.dumps(chat("a", max_tokens=3)))
        answer = json.loads(connection.getresponse().read())
        assert answer["choices"][0]["message"]["content"] == "bcd"
        connection.close()
    assert not path.exists()
