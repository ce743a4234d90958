"""Which requests of web pages a server without keys refuses."""

import json

import pytest
import trio

from tests.kit.http.gated_server import CHAT, gated_server
from tests.kit.http.http_calls import chat
from tlserve.access.pages import PageGuard, plan_page_guard
from tlserve.config.checks import check_hosts
from tlserve.errors import SettingsError
from tlserve.http.client.connection import HttpClient, connect
from tlserve.http.messages import Headers, HttpFault

LOCAL = plan_page_guard(has_keys=False, is_local=True, hosts=("models.test",), origins=("https://app.example.com",))
PUBLIC = plan_page_guard(has_keys=False, is_local=False, origins=("https://app.example.com",))
TEXT = ("Content-Type", "text/plain")


def passes(guard: PageGuard, *headers: tuple[str, str]) -> bool:
    try:
        guard.check(Headers(headers))
    except HttpFault as fault:
        return fault.status != 403
    return True


@pytest.mark.spec("ACC-63")
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "api.localhost:1",
        "127.0.0.1:8000",
        "127.8.8.8",
        "[::1]:8000",
        "[::1]",
        "192.168.1.7:8000",
        "models.test",
        "models.test:80",
    ],
)
def test_known_names_pass_with_any_port(host: str) -> None:
    assert passes(LOCAL, ("Host", host))


@pytest.mark.spec("ACC-63")
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "notlocalhost",
        "127.0.0.1:80:80",
        "[evil]",
        "models.test.evil.example",
        "x",
    ],
)
def test_a_foreign_host_is_refused_by_name(host: str) -> None:
    with pytest.raises(HttpFault, match=r"access\.allow_hosts") as caught:
        LOCAL.check(Headers([("Host", host)]))
    assert caught.value.status == 403
    assert repr(host) in caught.value.message
    assert passes(PageGuard(checks_all=True, hosts=("*",)), ("Host", host))


@pytest.mark.spec("ACC-61")
@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://localhost",
        "http://127.0.0.1:5173",
        "http://[::1]:3000",
        "https://app.example.com",
        "http://models.test:8000",
    ],
)
def test_pages_of_this_machine_and_listed_pages_pass(origin: str) -> None:
    assert passes(LOCAL, ("Host", "models.test:8000"), ("Origin", origin), TEXT)


@pytest.mark.spec("ACC-61")
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://203.0.113.5",
        "https://app.example.com.evil.example",
        "",
        "http://localhost.evil",
        "http://localhost:80@evil.example",
        "http://app.example.com",
        "http://models.test:9000",
    ],
)
@pytest.mark.parametrize("kind", [TEXT, ("Content-Type", "application/json"), ("X-None", "")])
def test_pages_of_other_origins_are_refused(origin: str, kind: tuple[str, str]) -> None:
    assert not passes(LOCAL, ("Host", "models.test:8000"), ("Origin", origin), kind)
    allow_all = PageGuard(checks_all=True, hosts=("models.test",), origins=("*",))
    assert passes(allow_all, ("Host", "models.test:8000"), ("Origin", origin), kind)


@pytest.mark.spec("ACC-62")
def test_beyond_this_machine_only_what_a_browser_sends_without_permission_is_refused() -> None:
    evil, as_json = ("Origin", "https://evil.example"), ("Content-Type", "application/json; charset=utf-8")
    assert passes(PUBLIC, ("Host", "api.example"), TEXT)
    assert passes(PUBLIC, ("Host", "api.example"), ("Origin", "https://api.example"), TEXT)
    assert passes(PUBLIC, ("Host", "api.example"), ("Origin", "https://app.example.com"), TEXT)
    assert passes(PUBLIC, ("Host", "api.example"), evil, as_json)
    assert not passes(PUBLIC, ("Host", "api.example"), evil, TEXT)
    assert not passes(PUBLIC, ("Host", "api.example"), evil)


def test_with_keys_nothing_is_checked() -> None:
    guard = plan_page_guard(has_keys=True, is_local=True)
    assert passes(guard, ("Host", "evil.example"), ("Origin", "https://evil.example"), TEXT)


@pytest.mark.spec("ACC-63", "ACC-61")
async def test_a_server_refuses_what_pages_send_and_serves_programs() -> None:
    async with gated_server() as host:
        host.gate.open_all()
        address, _, port = host.server.address.rpartition(":")
        async with await connect(address, int(port)) as client:
            assert await status(client) == 200
            assert await status(client, TEXT) == 200
        async with HttpClient(await trio.open_tcp_stream(address, int(port)), host="evil.example") as client:
            assert await status(client) == 403
        async with await connect(address, int(port)) as client:
            assert await status(client, ("Origin", "https://evil.example"), TEXT) == 403
            assert await status(client, ("Origin", "https://evil.example"), ("Content-Type", "application/json")) == 403
            assert await status(client, ("Origin", "http://localhost:3000"), TEXT) == 200


async def status(client: HttpClient, *headers: tuple[str, str]) -> int:
    answer = await client.request("POST", CHAT, headers, json.dumps(chat("a", max_tokens=1)).encode())
    if answer.status == 403:
        assert json.loads(answer.body)["error"]["code"] in ("host_not_allowed", "origin_not_allowed")
    return answer.status


@pytest.mark.parametrize("host", ["models.test:80", "http://models.test", "Models.test", "", "a b", "[::1]"])
def test_a_listed_host_is_a_name(host: str) -> None:
    with pytest.raises(SettingsError, match="a name in lower case"):
        check_hosts((host,))
    check_hosts(("*", "models.test", "models"))
