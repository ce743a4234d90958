"""A conversation through two heads that know nothing of each other: they choose the same node for all its turns."""

import json

import pytest
import trio

from tests.kit.fleet.fake_node import fake_fleet
from tests.kit.http.guarded_api import CHAT, RIGHT, chat_body, guarded
from tlserve.chat.messages import SHORT_BYTES, Role, Turn, conversation_of

TURNS = 5
SHARED = "You answer in one short sentence."


def first_turns(kind, number):
    """Return the messages of the first turn of conversation `number`."""
    own = {"role": "user", "content": f"hello, number {number:02}"}
    return {
        "20 tokens": [own],
        "a shared system prompt": [{"role": "system", "content": SHARED}, own],
        "a long first turn": [{"role": "user", "content": f"number {number:02}: {'and so on ' * 40}"}],
        "a long shared system prompt": [{"role": "system", "content": SHARED * 12}, own],
    }[kind]


async def nodes_of_turns(fleet, apis, messages):
    """Return the node of each turn; the turns go to the heads in turn."""
    nodes = []
    for turn in range(TURNS):
        before = {name: len(node.requests) for name, node in fleet.nodes.items()}
        body = chat_body(messages=messages, max_tokens=5, seed=1)
        answer = await apis[turn % len(apis)].ask("POST", CHAT, RIGHT, body=body)
        assert answer.status == 200, answer.body
        said = json.loads(answer.body)["choices"][0]["message"]["content"]
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": f"go on, {turn}"}]
        nodes += [name for name, node in fleet.nodes.items() if len(node.requests) > before[name]]
        await trio.sleep(1.5)  # the heads hear from the nodes that nothing runs
    return nodes


@pytest.mark.spec("PLACE-9")
@pytest.mark.parametrize(
    "kind", ["20 tokens", "a shared system prompt", "a long first turn", "a long shared system prompt"]
)
async def test_two_heads_send_all_turns_of_a_conversation_to_one_node(kind, autojump_clock):
    async with fake_fleet(3, heads=2) as fleet:
        one, other = fleet.heads
        async with guarded(served={"backend": one}) as first, guarded(served={"backend": other}) as second:
            for number in range(12):
                apis = [first, second] if number % 2 else [second, first]
                nodes = await nodes_of_turns(fleet, apis, first_turns(kind, number))
                assert len(nodes) == TURNS
                assert len(set(nodes)) == 1, f"conversation {number} was on {nodes}"


# --- names


def turns(*texts):
    roles = [Role.USER, Role.ASSISTANT]
    return [Turn(role=roles[place % 2], text=text) for place, text in enumerate(texts)]


@pytest.mark.spec("PLACE-9")
def test_a_conversation_keeps_its_name_while_it_grows():
    name = conversation_of(turns("a"))
    assert name == conversation_of(turns("a", "b", "c" * 1000)) != conversation_of(turns("b"))
    assert name != conversation_of([Turn(role=Role.SYSTEM, text="a")])
    assert name != conversation_of([*turns("a"), *turns("")])
    assert conversation_of(turns("\ud800"))


@pytest.mark.spec("PLACE-9")
def test_a_long_beginning_has_no_name_of_its_own():
    assert conversation_of(turns("x" * SHORT_BYTES, "b")) == conversation_of(turns("y" * SHORT_BYTES)) == ""
