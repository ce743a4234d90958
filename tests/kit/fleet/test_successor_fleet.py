"""A fleet of successor nodes counts up like one of them."""

from tests.kit.engine.hash_backend import events_of, tokens_of
from tests.kit.fleet.successor_fleet import successor_fleet
from tlserve.generation import GenerationRequest


async def test_the_fleet_counts_up() -> None:
    async with successor_fleet(3) as head:
        assert len(head.members) == 3
        events = await events_of(head, GenerationRequest(prompt=(97,), max_tokens=3, seed=0))
        assert [event.token for event in tokens_of(events)] == [98, 99, 100]
