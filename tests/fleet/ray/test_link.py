"""Nodes that are actors of a real cluster on this machine, reached by the Ray link."""

import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import attrs
import numpy as np
import pytest
import trio

from tests.kit.fleet.mini_head import follow, fresh_key, read_on
from tests.kit.fleet.ray_cluster import (
    SUCC,
    actors,
    joined,
    links_of,
    listening_addresses,
    pid_of,
    running_cluster,
)
from tests.kit.fleet.ray_nodes import standing_nodes
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.config.environment import process_environ
from tlserve.config.settings import EngineSettings, Settings
from tlserve.errors import ClientError
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.link import Ack, NodeGone, NodeLost
from tlserve.fleet.node.service import NodeLimits
from tlserve.fleet.ray.actor import list_nodes
from tlserve.fleet.ray.cluster import ClusterRefused, join_cluster
from tlserve.fleet.ray.directory import RayDirectory
from tlserve.fleet.ray.link import ActorFailed
from tlserve.fleet.ray.processes import make_token_file
from tlserve.fleet.remote_node import RemoteNode
from tlserve.generation import EmbeddingRequest, GenerationRequest, TokenEvent
from tlserve.programs.node_in_thread import start_node
from tlserve.programs.ray.node import serve_node
from tlserve.sampling_params import SamplingParams

pytestmark = pytest.mark.ray

JOIN_WITH_ANOTHER_TOKEN = """
import sys, pathlib, trio
from tlserve.fleet.ray.cluster import join_cluster
from tlserve.fleet.ray.processes import ClusterRefused
from tlserve.fleet.ray.settings import RaySettings
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

ANSWER = GenerationRequest(prompt=(1, 2, 3), max_tokens=40, seed=7, logprobs=2)
LONG = GenerationRequest(prompt=(1, 2, 3), max_tokens=4000, seed=7)
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as processes, standing_nodes(processes, ["standing"]):
        yield processes


@pytest.fixture(scope="module", autouse=True)
def outsiders(cluster, tmp_path_factory):
    """Start two programs that must not join; they fail while the other tests run."""
    other = make_token_file(tmp_path_factory.mktemp("other") / "token")
    programs = [
        _start(JOIN_WITH_ANOTHER_TOKEN, {}, cluster.address, str(other)),
        _start(JOIN_WITHOUT_A_TOKEN, OF_NO_TOKEN, cluster.address),
    ]
    yield lambda: [program.communicate(timeout=60)[0].strip() for program in programs]
    for program in programs:
        program.kill()
        program.communicate()


def _start(program, environment, *arguments):
    variables = {name: value for name, value in process_environ().items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@asynccontextmanager
async def standing_link(cluster):
    """Return the link to the node that all tests share."""
    async with joined(cluster) as changes:
        yield (await links_of(changes, ["standing"]))["standing"]


def in_process(host, node):
    async def carry(name, body):
        return await trio.to_thread.run_sync(host.call, name, body)

    return RemoteNode(node, carry)


@contextmanager
def node_here(name):
    """Return the same node without a cluster, as a link."""
    host = start_node(SUCC, NodeLimits(), name)
    try:
        yield in_process(host, name)
    finally:
        host.end()


@pytest.mark.spec("RAY-1")
async def test_a_node_answers_through_its_actor_as_in_process(cluster):
    with node_here("here") as near:
        async with standing_link(cluster) as far:
            mine, its = await near.hello(), await far.hello()
            assert (its.node, its.backend, its.slots) == ("standing", mine.backend, mine.slots)
            assert await follow(far, ANSWER) == await follow(near, ANSWER)
            texts = EmbeddingRequest(inputs=((1, 2), (3,)))
            for one, other in zip(await far.embed(texts), await near.embed(texts), strict=True):
                assert np.array_equal(one, other)
            with pytest.raises(ClientError):
                await far.place(fresh_key(), attrs.evolve(ANSWER, prompt=(-1,)), 60)


@pytest.mark.spec("RAY-13")
async def test_an_abandoned_poll_loses_nothing(cluster):
    async with standing_link(cluster) as link:
        key = fresh_key()
        await link.place(key, ANSWER, 60)
        with trio.move_on_after(0):
            await link.poll(key.head, [Ack(key, 0, 64)], 5)
        (session,) = (await link.poll(key.head, [Ack(key, 0, 64)], 5)).sessions
        assert session.start == 0


async def until(ask):
    """Ask until the answer is true."""
    with trio.fail_after(10):
        while True:
            if await ask():
                return
            await trio.sleep(0.01)


async def busy_sequences(link):
    statistics = (await link.poll("head", [], 0)).statistics
    return statistics.active_sequences + statistics.queue_depth


async def no(question):
    return not await question


async def is_draining(link, key):
    return (await link.poll(key.head, [Ack(key, 0, 64)], 0)).draining


async def has_ended(cluster, pid):
    return pid not in cluster.pids()


@pytest.mark.spec("RAY-13")
async def test_a_cancel_frees_the_node_within_a_second(cluster):
    async with standing_link(cluster) as link:
        keys = [fresh_key() for _ in range(24)]  # some run, the others wait: more than the engine makes in a second
        for key in keys:
            await link.place(key, LONG, 60)
        assert await busy_sequences(link)
        await link.cancel(keys)
        with trio.fail_after(1):
            await until(lambda: no(busy_sequences(link)))
        assert (await link.poll("head", [Ack(keys[0], 0, 8)], 0)).unknown == (keys[0],)


@pytest.mark.spec("RAY-2")
async def test_a_nodes_death_is_noticed_at_once_and_its_name_can_be_used_again(cluster):
    async with joined(cluster) as changes:
        async with actors(["a"]) as pids:
            link = (await links_of(changes, ["a", "standing"]))["a"]
            first = await link.hello()
            noticed = []

            async def poll():
                with pytest.raises(NodeLost):
                    await link.poll("head", [], 5)
                noticed.append(time.monotonic())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await trio.sleep(0.2)
                killed = time.monotonic()
                os.kill(pids["a"], signal.SIGKILL)
            assert noticed[0] - killed < 1
            assert await anext(changes) == NodeGone("a", "its actor has ended")
        async with actors(["a"]):
            again = (await links_of(changes, ["a"]))["a"]
            assert (await again.hello()).incarnation != first.incarnation
            with pytest.raises(NodeLost):
                await link.hello()


@pytest.mark.spec("RAY-2")
async def test_a_node_that_hangs_is_noticed_by_the_deadline_of_its_poll(cluster):
    async with joined(cluster) as changes, actors(["a"]) as pids:
        link = (await links_of(changes, ["a"]))["a"]
        await link.hello()
        os.kill(pids["a"], signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(NodeLost, match="did not answer 'poll' within 2 s"):
            await link.poll("head", [], 1)
        assert time.monotonic() - begin < 2.5
        os.kill(pids["a"], signal.SIGCONT)
        with trio.fail_after(5):
            await link.poll("head", [], 0)


@pytest.mark.spec("RAY-5")
async def test_a_name_belongs_to_one_node_and_a_node_that_cannot_start_says_why(cluster):
    async with joined(cluster):
        with pytest.raises(ClusterRefused, match="give this one another name"):
            async with actors(["standing"]):
                pass
        with pytest.raises(ActorFailed, match="there is no model"):
            async with actors(["b"], attrs.evolve(SUCC, model_dir="nowhere")):
                pass


@pytest.mark.spec("RAY-7")
async def test_every_socket_of_the_cluster_and_its_nodes_is_on_loopback(cluster):
    async with standing_link(cluster) as link:
        await link.hello()
        everybody = [*cluster.pids(), os.getpid()]
        for pid in map(partial(pid_of, cluster), ("gcs_server", "raylet/raylet", "NodeActor")):
            assert listening_addresses([pid]), pid
        assert listening_addresses(everybody) <= LOOPBACK


@pytest.mark.spec("RAY-10")
async def test_joining_keeps_our_signal_handlers(cluster, capfd):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with joined(cluster):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        with trio.open_signal_receiver(signal.SIGTERM) as received:
            os.kill(os.getpid(), signal.SIGTERM)
            assert await anext(received) == signal.SIGTERM
    assert "SIGTERM received" not in capfd.readouterr().err


@pytest.mark.spec("RAY-10")
async def test_a_second_cluster_is_refused_while_this_process_is_in_one(cluster):
    async with joined(cluster):
        with pytest.raises(ClusterRefused, match="already in a cluster"):
            async with join_cluster(cluster.settings, cluster.address):
                pass


@pytest.mark.spec("RAY-12")
async def test_an_address_without_a_cluster_is_reported(cluster):
    with pytest.raises(ClusterRefused, match="no cluster answers"):
        async with join_cluster(cluster.settings, "127.0.0.1:1"):
            pass


@pytest.mark.spec("RAY-8")
def test_a_process_with_a_wrong_or_missing_token_cannot_join(outsiders):
    of_another, of_none = outsiders()
    assert "does it use the token of" in of_another
    assert of_none in {"AuthenticationError", "ConnectionError", "RuntimeError"}


@pytest.mark.spec("RAY-6")
async def test_a_node_drains_and_ends_its_process_when_it_is_stopped(cluster):
    async with trio.open_nursery() as nursery:
        start = partial(serve_node, Settings(engine=SUCC), cluster.settings, cluster.address, "a", handle_signals=False)
        node = await nursery.start(start)
        assert str(node.pid) in os.listdir("/proc")
        link = (await links_of(RayDirectory(list_nodes).changes(), ["a"]))["a"]
        key = fresh_key()
        await link.place(key, ANSWER, 60)
        node.stop()
        await until(lambda: is_draining(link, key))
        await read_on(link, key, [])
    await until(lambda: has_ended(cluster, node.pid))


@pytest.mark.spec("RAY-3")
async def test_32_streams_through_a_head_survive_a_killed_node_with_the_same_bits(cluster, tmp_path):
    engine = EngineSettings(model_dir=str(write_tiny_gguf(tmp_path / "tiny.gguf")), max_num_seqs=32, context_tokens=256)
    requests = [
        GenerationRequest(
            prompt=(1 + number, 5, 9), max_tokens=100, seed=number, logprobs=1, sampling=SamplingParams(temperature=0.8)
        )
        for number in range(32)
    ]
    async with joined(cluster) as _, actors(["a", "b", "c"], engine) as pids:
        calm = await answers_of(requests)
        assert await answers_of(requests, lambda: os.kill(pids["a"], signal.SIGKILL)) == calm


async def answers_of(requests, disturb=lambda: None):
    """Return the tokens of every request through a head of its own; `disturb` is called when all streams have begun."""
    model = FleetModel(model_id="tiny", max_context=256, vocabulary_size=256, embedding_size=64)
    backend = FleetBackend(RayDirectory(list_nodes), model)
    answers, under_way, go_on = {}, set(), trio.Event()

    async def stream(number, request):
        events = []
        async with backend.generate(request) as tokens:
            async for batch in tokens:
                events += [event for event in batch if isinstance(event, TokenEvent)]
                if len(events) > 3 and number not in under_way:
                    under_way.add(number)
                    if len(under_way) == len(requests):
                        disturb()
                        go_on.set()
                    await go_on.wait()
        answers[number] = events

    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        with trio.fail_after(60):
            await backend.wait_ready(3)
            async with trio.open_nursery() as streams:
                for number, request in enumerate(requests):
                    streams.start_soon(stream, number, request)
        nursery.cancel_scope.cancel()
    assert [len(answers[number]) for number in range(len(requests))] == [request.max_tokens for request in requests]
    return answers
