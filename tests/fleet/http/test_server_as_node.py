"""A whole server as a node, over real sockets: the session, the key, TLS, the drain, and refusals at the start."""

from functools import partial

import attrs
import pytest
import trio

from tests.kit.fleet.mini_head import ended, follow, fresh_key, poll_once, read_on
from tests.kit.http.certificates import Certificates
from tests.kit.http.gated_server import gated_server
from tests.kit.http.http_calls import get
from tests.kit.http.stalling_proxy import StallingProxy
from tlserve.config.settings import EngineSettings, FleetSettings, Settings
from tlserve.config.tables.network import AccessSettings
from tlserve.errors import DrainCut, Draining, SettingsError
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.static_directory import StaticDirectory
from tlserve.fleet.link import NodeLost
from tlserve.fleet.remote_node import CallTimes
from tlserve.generation import GenerationRequest, TokenEvent
from tlserve.programs.http_node import check_node
from tlserve.programs.server_objects import read_keys
from tlserve.testing import serve

KEY = "only-for-this-fleet-7"
API_KEY = "an-api-key-of-somebody-5"
NODE = {"fleet.internal": True, "fleet.internal_key": KEY}
REQUEST = GenerationRequest(prompt=(97, 98), max_tokens=40, seed=5, logprobs=3)
LONG = attrs.evolve(REQUEST, max_tokens=3000)


def link_to(server, key=KEY, **more):
    return HttpLink(f"http://{server.address}", key=key, **more)


async def local_answer(server, request_):
    """Return the tokens that the server's own backend gives."""
    async with server.running.assembled.backend.generate(request_) as stream:
        return [event async for batch in stream for event in batch if isinstance(event, TokenEvent)]


@pytest.mark.spec("LINK-1")
async def test_a_session_over_a_socket_has_the_bits_of_the_engines_own_answer():
    async with serve(settings=NODE) as server:
        link = link_to(server)
        _, *tokens = await follow(link, REQUEST)
        assert tokens == await local_answer(server, REQUEST)
        await link.aclose()


async def test_many_sessions_at_once_each_get_their_own_answer():
    async with serve(settings=NODE) as server:
        link, answers = link_to(server), {}

        async def ask(first):
            asked = attrs.evolve(REQUEST, prompt=(first,), max_tokens=20)
            answers[first] = [event.token for event in (await follow(link, asked, at=fresh_key(str(first))))[1:]]

        async with trio.open_nursery() as nursery:
            for first in range(32):
                nursery.start_soon(ask, first)
        assert answers == {first: list(range(first + 1, first + 21)) for first in range(32)}
        await link.aclose()


@pytest.mark.spec("LINK-4", "LINK-5")
async def test_the_routes_exist_only_with_the_setting():
    async with serve() as server:
        link = link_to(server, "")
        with pytest.raises(NodeLost, match=r"404.*set fleet\.internal = true"):
            await link.hello()
        await link.aclose()


@pytest.mark.spec("LINK-5", "LINK-10")
async def test_the_keys_of_the_fleet_and_of_the_api_open_only_their_own_routes():
    async with serve(settings={**NODE, "access.api_key": API_KEY}) as server:
        await (mine := link_to(server)).hello()
        with pytest.raises(NodeLost, match="401"):
            await (theirs := link_to(server, API_KEY)).hello()
        await mine.aclose()
        await theirs.aclose()
        for key, status in ((KEY, 401), (API_KEY, 200)):
            bearer = f"Bearer {key}"
            ask = partial(get, server.address, "/v1/models", Authorization=bearer)
            assert (await trio.to_thread.run_sync(ask)).status == status


@pytest.mark.spec("LINK-8")
async def test_a_head_that_trusts_the_certificate_reaches_a_node_over_tls(tmp_path):
    made = Certificates(tmp_path)
    tls = {"tls.certificate": str(made.certificate), "tls.key": str(made.key)}
    async with serve(settings={**NODE, **tls}) as server:
        url = f"https://{server.address}"
        link = HttpLink(url, key=KEY, tls=made.client_context())
        assert len(await follow(link, REQUEST)) == 41
        await link.aclose()
        for stranger in (
            HttpLink(url, key=KEY),
            HttpLink(url, key=KEY, tls=made.client_context(), server_name="other"),
        ):
            with pytest.raises(NodeLost, match=r"TLS handshake failed.*certificate"):
                await stranger.hello()
        named = HttpLink(url, key=KEY, tls=made.client_context(), server_name="localhost")
        await named.hello()
        await named.aclose()


@pytest.mark.spec("LINK-3")
async def test_a_silent_network_is_noticed_by_the_deadline_of_the_poll():
    async with serve(settings=NODE) as server:
        with StallingProxy(server.address) as proxy:
            link = HttpLink(f"http://{proxy.address}", key=KEY, times=CallTimes(poll_margin_s=0.3))
            await link.poll("head", [], 0)
            proxy.stall()
            began = trio.current_time()
            with pytest.raises(NodeLost, match=r"did not answer 'poll' within 0\.5 s"):
                await link.poll("head", [], 0.2)
            assert 0.45 < trio.current_time() - began < 5
            proxy.flow()
            await link.poll("head", [], 0)
            await link.aclose()


# --- the drain ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-21")
async def test_a_draining_node_lets_its_heads_fetch_the_rest_and_exits_with_0():
    async with gated_server(**{name.replace(".", "__"): value for name, value in NODE.items()}) as at:
        link, at_key = link_to(at.server), fresh_key()
        await link.place(at_key, REQUEST, 60)
        await at.step()
        at.server.drain()
        with trio.fail_after(20):
            while not (await link.hello()).draining:
                await trio.lowlevel.checkpoint()
        with pytest.raises(Draining):
            await link.place(fresh_key(), REQUEST, 60)
        at.gate.open_all()
        assert len(await read_on(link, at_key, [])) == 41
        assert await at.server.join() == 0
        await link.aclose()


async def drain_twice(server):
    await trio.testing.wait_all_tasks_blocked(0.05)
    server.drain()
    server.drain()


@pytest.mark.slow
@pytest.mark.spec("NODE-21")
async def test_a_node_that_is_cut_sends_its_heads_errors():
    async with gated_server(**{name.replace(".", "__"): value for name, value in NODE.items()}) as at:
        link, at_key = link_to(at.server), fresh_key()
        await link.place(at_key, LONG, 60)
        await at.step()
        have, error = 0, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain_twice, at.server)
            while error is None:
                events, error = await poll_once(link, at_key, have, wait_s=5)
                have += len(events)
        assert isinstance(error, DrainCut)
        at.gate.open_all()
        assert await at.server.join() == 3
        await link.aclose()


async def test_a_node_without_sessions_drains_at_once():
    async with serve(settings=NODE) as server:
        link = link_to(server)
        await link.hello()
        server.drain()
        assert await server.join() == 0
        await link.aclose()


# --- a head on it -------------------------------------------------------------------------------------------------------


async def test_a_head_over_two_servers_moves_sessions_that_one_drops():
    async with serve(settings=NODE) as one, serve(settings=NODE) as other, trio.open_nursery() as nursery:
        truth = await local_answer(one, LONG)
        directory = StaticDirectory(
            [f"http://{server.address}" for server in (one, other)], lambda url: HttpLink(url, key=KEY)
        )
        model = FleetModel(model_id="succ", max_context=4096, vocabulary_size=256, embedding_size=256)
        head = FleetBackend(directory, model)
        await nursery.start(head.run)
        await head.wait_ready(2)
        got = []
        async with head.generate(LONG) as stream:
            async for batch in stream:
                got += [event for event in batch if isinstance(event, TokenEvent)]
                if 0 < len(got) < 2000:
                    for server in (one, other):
                        if server.running.assembled.backend.admitted and not server.ended.is_set():
                            server.drain()
                            server.drain()
                            break
                    break
            async for batch in stream:
                got += [event for event in batch if isinstance(event, TokenEvent)]
        assert got == truth
        nursery.cancel_scope.cancel()
    await directory.aclose()


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("LINK-6")
@pytest.mark.parametrize(
    ("bound", "fleet", "words"),
    [
        ("0.0.0.0:8000", FleetSettings(internal=True), "can be reached from other machines"),
        ("[::]:8000", FleetSettings(internal=True), "TL_FLEET__INTERNAL_KEY"),
        ("127.0.0.1:8000", FleetSettings(internal=True, internal_key=API_KEY), "is also the API key 'api_key'"),
    ],
)
def test_a_node_that_is_not_safe_does_not_start(bound, fleet, words):
    settings = Settings(fleet=fleet, access=AccessSettings(api_key=API_KEY, allow_public=True))
    with pytest.raises(SettingsError, match=words) as caught:
        check_node(settings, [bound], read_keys(settings.access))
    assert API_KEY not in str(caught.value)


@pytest.mark.spec("LINK-6")
@pytest.mark.parametrize(
    ("bound", "fleet"),
    [
        ("127.0.0.1:8000", FleetSettings(internal=True)),
        ("unix:/tmp/x", FleetSettings(internal=True)),
        ("0.0.0.0:8000", FleetSettings(internal=True, internal_key=KEY)),
        ("0.0.0.0:8000", FleetSettings()),
    ],
)
def test_a_node_that_is_safe_starts(bound, fleet):
    check_node(Settings(fleet=fleet), [bound], None)


@pytest.mark.spec("LINK-11")
def test_a_node_serves_one_model():
    settings = Settings(fleet=FleetSettings(internal=True), models=(EngineSettings(model_dir="succ"),))
    with pytest.raises(SettingsError, match="a node serves one model"):
        check_node(settings, ["127.0.0.1:8000"], None)


@pytest.mark.slow
async def test_a_session_is_followed_piece_by_piece_over_a_socket():
    async with gated_server(**{name.replace(".", "__"): value for name, value in NODE.items()}) as at:
        link, at_key, events = link_to(at.server), fresh_key(), []
        await link.place(at_key, attrs.evolve(REQUEST, max_tokens=3), 60)
        while not ended(events):
            await at.step()
            more, _ = await poll_once(link, at_key, len(events))
            assert more, "a step gave nothing"
            events += more
        assert [event.token for event in events[1:]] == [99, 100, 101]
        await link.aclose()
