"""A real fleet on a Ray cluster of this machine, by the commands of an operator: an actor is killed, then the control process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import attrs
import pytest
import trio

from tests.kit.cli.processes import ServerProcess, command_line, server_process, wait_gone, wait_until
from tests.kit.fleet.loopback_fleet import Load, answers_of
from tests.kit.http.http_calls import chat, get
from tlserve.fleet.ray.keeper import session_pids
from tlserve.testing import serve_in_thread

pytestmark = [pytest.mark.ray, pytest.mark.real_model]

MODEL = "smol-135m"
STREAMS = 32
TOKENS = 48


def body(number: int) -> dict[str, object]:
    return chat(f"Tell me of {number}", model=MODEL, seed=number, max_tokens=TOKENS, temperature=0.9, ignore_eos=True)


BODIES = [body(number) for number in range(STREAMS)]


@attrs.frozen
class Cluster:
    """The programs of one cluster."""

    control: ServerProcess
    nodes: list[ServerProcess]
    head: ServerProcess

    def control_pid(self) -> int:
        """Return the id of Ray's control process."""
        (keeper,) = self.control.children()
        return next(pid for pid in session_pids(keeper) if "gcs_server" in command_line(pid))

    def states(self) -> list[str]:
        return [node["state"] for node in get(self.head.health_address, "/healthz").json["fleet"]]


@pytest.fixture
def cluster(tmp_path, smol_path) -> Iterator[Cluster]:
    token = f"fleet.ray_token_file={tmp_path / 'token'}"
    with ExitStack() as stack:
        control = stack.enter_context(server_process("fleet", "control", "--set", token))
        address = control.wait_line(r"control process answers at (\S+);")[1]
        settings = (token, f"fleet.ray_address={address}", "threads=1", "kv_memory_bytes=200000000")
        own = ("--model", MODEL, *(word for setting in settings for word in ("--set", setting)))
        nodes = [
            stack.enter_context(server_process("node", "--join", address, "--name", name, *own))
            for name in ("one", "two", "three")
        ]
        for node in nodes:
            node.wait_line("is in the cluster")
        head = stack.enter_context(server_process("fleet", *own))
        running = Cluster(control, nodes, head)
        wait_until(lambda: running.states() == ["ready"] * 3)
        yield running
        for process in (head, *nodes, control):
            if process.process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait_exit()


async def test_a_killed_actor_and_then_a_killed_control_process_cut_no_stream(cluster) -> None:
    with serve_in_thread(MODEL) as alone:
        expected = await trio.to_thread.run_sync(answers_of, alone.address, BODIES)
    load = Load(cluster.head.address, BODIES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await load.wait_tokens(STREAMS * 4)
        actor = int(cluster.nodes[0].wait_line(r"as process (\d+)")[1])
        os.kill(actor, signal.SIGKILL)
        await trio.to_thread.run_sync(cluster.head.wait_line, "node one is lost")
        await load.wait_tokens(STREAMS * 8)
        os.kill(cluster.control_pid(), signal.SIGKILL)
    assert load.answers() == expected
    wait_gone(actor)

    def check_ends() -> None:
        assert cluster.head.wait_exit() == 0
        cluster.head.wait_line("the control process of the cluster at .* is gone")
        assert [node.wait_exit() for node in cluster.nodes[1:]] == [0, 0]
        assert cluster.control.wait_exit() != 0
        assert "has ended by itself" in cluster.control.lines[-1]

    await trio.to_thread.run_sync(check_ends)
