"""A random schedule replays from its seed, reaches every fault, and detects a wrong answer."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio

from tests.kit.engine.hash_backend import answer, prompt_logprobs
from tests.kit.fleet.fleet_schedules import HARM, LINK_FAULTS, Client, FleetSchedule, Outcome, faults_of
from tests.kit.virtual_time import run_seeded
from tlserve.errors import ClientError
from tlserve.fleet.head.transcript import Transcript
from tlserve.fleet.link import NodeLost
from tlserve.generation import GenerationRequest, PrefillStarted

REQUEST = GenerationRequest(prompt=tuple(range(8)), max_tokens=6, seed=3, prompt_logprobs=0)
CLIENT = Client(REQUEST, at=0, head=0)
GOOD: list[Any] = [PrefillStarted(0), *prompt_logprobs(REQUEST), *answer(REQUEST)]


def wrong(events: Sequence[Any], error: Any = None, must_finish: bool = True) -> list[str]:
    return list(faults_of(CLIENT, Outcome(list(events), error), must_finish=must_finish))


def test_a_correct_answer_is_accepted() -> None:
    assert wrong(GOOD) == []
    assert wrong(GOOD[:6], NodeLost("gone"), must_finish=False) == []
    assert wrong([], NodeLost("gone")) == []


@pytest.mark.parametrize(
    "events",
    [
        GOOD[:-1],
        [*GOOD[:5], *GOOD[6:]],
        [*GOOD, GOOD[-1]],
        [*GOOD[:4], GOOD[5], GOOD[4], *GOOD[6:]],
        [GOOD[0], *GOOD],
        [GOOD[0], *GOOD[4:]],
        [GOOD[1], GOOD[0], *GOOD[2:]],
        GOOD[1:],
        [GOOD[0], GOOD[1], *GOOD[1:]],
        [*GOOD[:-1], attrs.evolve(GOOD[-1], token=GOOD[-1].token ^ 1)],
    ],
)
def test_lost_doubled_reordered_or_changed_events_are_detected(events: list[Any]) -> None:
    assert wrong(events)


def test_unexpected_errors_are_detected() -> None:
    assert wrong(GOOD[:6], NodeLost("gone"), must_finish=True)
    assert wrong(GOOD, NodeLost("gone"), must_finish=False)
    assert wrong(GOOD[:6], ClientError("what"), must_finish=False)


def test_a_head_that_repeats_a_token_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any) -> Any:
        emitted = self.emitted[:-1] if len(self.emitted) > 3 else self.emitted
        return attrs.evolve(self.request, emitted=emitted)

    monkeypatch.setattr(Transcript, "continuation", forgetful)
    assert any(FleetSchedule(seed).play().wrong for seed in range(40))


def test_every_fault_occurs() -> None:
    faults = [fault for seed in range(300) for fault in FleetSchedule(seed).faults]
    assert {fault.kind for fault in faults} == {*HARM, "link"}
    assert {fault.link for fault in faults if fault.kind == "link"} == {
        (kind, fault) for kind, faults in LINK_FAULTS.items() for fault in faults
    }


def test_the_order_of_tasks_is_drawn_from_the_seed() -> None:
    async def order() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        async def note(number: int) -> None:
            await trio.sleep(number % 3)
            seen.append((number, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(note, number)
        return seen

    assert run_seeded(order, seed=1) == run_seeded(order, seed=1)
    assert run_seeded(order, seed=1) != run_seeded(order, seed=2)
