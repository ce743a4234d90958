"""The servers that users start in their tests."""

import attrs
import pytest
import trio

import tlserve.testing
from tests.kit.engine.gated_model import GatedModel
from tests.kit.http.gated_server import gated_succ
from tests.kit.http.http_calls import chat, get, post
from tlserve.errors import EngineFailed, ModelMissing, SettingsError


def test_a_threaded_server_answers_and_is_gone_after_the_block():
    with tlserve.testing.serve_in_thread("succ") as server:
        assert post(server.address, "/v1/chat/completions", chat("a", max_tokens=3)).status == 200
        address = server.address
    assert server.join() == 0
    with pytest.raises(ConnectionError):
        get(address, "/healthz")


async def test_a_server_in_the_same_run_answers_and_is_gone_after_the_block():
    async with tlserve.testing.serve("succ") as server:
        reply = await trio.to_thread.run_sync(get, server.address, "/v1/models")
        assert reply.json["data"][0]["id"] == "succ"
    assert server.exit_code == 0


async def test_a_drain_in_the_block_ends_the_server_with_its_code():
    async with tlserve.testing.serve("succ") as server:
        server.drain()
        assert await server.join() == 0


def test_two_servers_at_once_are_independent():
    with tlserve.testing.serve_in_thread() as one, tlserve.testing.serve_in_thread() as two:
        assert one.address != two.address


def test_the_error_of_a_failed_start_reaches_the_test():
    with pytest.raises(ModelMissing), tlserve.testing.serve_in_thread("no-such-model"):
        pass


def test_a_wrong_setting_is_refused_by_its_name():
    with pytest.raises(SettingsError, match="chunk"), tlserve.testing.serve_in_thread(settings={"engine.chunk": 1}):
        pass


async def test_an_exception_of_the_block_is_raised_unchanged():
    with pytest.raises(ZeroDivisionError):
        async with tlserve.testing.serve():
            1 / 0  # noqa: B018


class DyingModel(GatedModel):
    def forward(self, batch, kv):
        raise ArithmeticError("the arithmetic broke")


def dying():
    _, loaded = gated_succ()
    return attrs.evolve(loaded, model=DyingModel(loaded.model))


def test_a_dead_engine_also_fails_a_test_that_does_not_check():
    with pytest.raises(EngineFailed), tlserve.testing.serve_in_thread(loaded=dying()) as server:
        assert post(server.address, "/v1/chat/completions", chat("a")).status == 500


def test_a_dead_engine_is_reported_once():
    with tlserve.testing.serve_in_thread(loaded=dying()) as server:
        assert post(server.address, "/v1/chat/completions", chat("a")).status == 500
        with pytest.raises(EngineFailed):
            server.join()


def test_waiting_for_a_server_that_keeps_running_ends():
    with tlserve.testing.serve_in_thread() as server, pytest.raises(TimeoutError):
        server.join(0.01)
