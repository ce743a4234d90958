"""A real fleet of three nodes with the real model: nodes fail, and each stream is the same as without faults."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import trio

from tests.kit.cli.processes import wait_until
from tests.kit.fleet.loopback_fleet import Load, LoopbackFleet, answers_of, loopback_fleet, start_node
from tests.kit.http.http_calls import chat
from tests.kit.http.stalling_proxy import StallingProxy
from tlserve.testing import serve_in_thread

STREAMS = 32
TOKENS = 24


COLOURS = {"type": "array", "minItems": 8, "maxItems": 12, "items": {"type": "string", "maxLength": 8}}
KINDS: tuple[dict[str, object], ...] = (
    {"frequency_penalty": 0.3, "repetition_penalty": 1.1, "ignore_eos": True},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "colours", "schema": COLOURS}}},
    {"logit_bias": {"28": 2.0, "30": -5.0}, "presence_penalty": 0.5, "min_tokens": TOKENS},
    {"temperature": 0, "ignore_eos": True},
)
"""State that has to go to another node: counts of tokens, the state of a grammar, biases, or nothing."""


def body(number: int) -> dict[str, object]:
    """Return a request that differs from all others, with its own seed."""
    fields = {"temperature": 0.9, "top_p": 0.95, "top_logprobs": 2, **KINDS[number % len(KINDS)]}
    text = f"Write a few words about the number {number} and what it likes to eat."
    return chat(text, model="smol-135m", seed=number, max_tokens=TOKENS, **fields)


BODIES = [body(number) for number in range(STREAMS)]


@pytest.fixture(scope="module")
def expected(smol_path):
    with serve_in_thread("smol-135m") as alone:
        return answers_of(alone.address, BODIES)


@pytest.fixture
def fleet(smol_path) -> Iterator[LoopbackFleet]:
    with loopback_fleet("smol-135m") as running:
        yield running


async def under_load(fleet: LoopbackFleet, act: Callable[[], object], tokens: int = STREAMS * 4) -> Load:
    """Ask for all streams, and call `act` in a thread once they have `tokens` tokens together."""
    load = Load(fleet.head.address, BODIES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.wait_tokens(tokens)
        await trio.to_thread.run_sync(act)
    return load


async def test_no_client_notices_a_killed_node(fleet, expected) -> None:
    load = await under_load(fleet, lambda: fleet.nodes[0].send_signal(signal.SIGKILL))
    assert load.answers() == expected
    assert fleet.node_log(f"node http://{fleet.nodes[0].address} is lost")


async def test_after_two_nodes_are_killed_the_third_has_every_stream(fleet, expected) -> None:
    def kill_two() -> None:
        fleet.nodes[0].send_signal(signal.SIGKILL)
        wait_until(lambda: bool(fleet.node_log("is lost")))
        fleet.nodes[1].send_signal(signal.SIGKILL)

    assert (await under_load(fleet, kill_two)).answers() == expected


async def test_a_frozen_node_is_replaced_and_its_late_tokens_are_ignored(fleet, expected) -> None:
    frozen = fleet.nodes[0]
    load = Load(fleet.head.address, BODIES)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await load.wait_tokens(STREAMS * 4)
            frozen.send_signal(signal.SIGSTOP)
            await trio.to_thread.run_sync(lambda: wait_until(lambda: bool(fleet.node_log("is lost"))))
            await load.wait_tokens(STREAMS * 10)
            frozen.send_signal(signal.SIGCONT)
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert load.answers() == expected
    await trio.to_thread.run_sync(fleet.wait_ready)


async def test_a_rolling_upgrade_of_all_nodes_cuts_no_stream(fleet, expected) -> None:
    with ExitStack() as stack:

        def upgrade_all() -> None:
            for node in fleet.nodes:
                port = int(node.address.rpartition(":")[2])
                node.send_signal(signal.SIGTERM)
                assert node.wait_exit() == 0
                assert start_node(stack, "smol-135m", port=port).address == node.address
                fleet.wait_ready()

        load = await under_load(fleet, upgrade_all)
        assert load.answers() == expected
        again = Load(fleet.head.address, BODIES)
        await again.run()
        assert again.answers() == expected


async def test_a_network_that_loses_a_nodes_packets_is_noticed(smol_path, expected) -> None:
    with ExitStack() as stack:
        proxies: list[StallingProxy] = []

        def through(address: str) -> str:
            proxies.append(stack.enter_context(StallingProxy(address)))
            return proxies[-1].address

        fleet = stack.enter_context(loopback_fleet("smol-135m", through=through))
        load = await under_load(fleet, proxies[0].stall)
        assert load.answers() == expected
        assert fleet.node_log(f"node http://{proxies[0].address} is lost")


async def test_without_a_node_every_stream_gets_one_stated_error(smol_path) -> None:
    with loopback_fleet("smol-135m", 1) as fleet:
        load = await under_load(fleet, lambda: fleet.nodes[0].send_signal(signal.SIGKILL))
        told = {(error["type"], error["code"]) for stream in load.streams if (error := stream.error)}
        assert told == {("server_error", "unavailable")}
        assert all(stream.error for stream in load.streams)
        assert all(stream.finish is None for stream in load.streams)
