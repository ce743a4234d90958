"""A fixed share of the search in every run; more, or others: `python -m tests.fuzz parsers --count 1000000 --seed 7`."""

import os
import random

import pytest

from tests.fuzz.faults import LONGEST, shown
from tests.fuzz.parsers.search import TARGETS, chance, counts, play, search
from tests.fuzz.parsers.target import Target
from tlserve.errors import ClientError

SHARE = 2
"""Inputs of each target in every run, for each unit of its share."""


@pytest.mark.spec("MOD-31", "WIRE-4", "SET-4", "CHAT-24")
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_returns_or_refuses_within_its_time_and_memory(name: str) -> None:
    target = TARGETS[name]
    faults = [fault for _, fault in play(target, 1, range(SHARE * target.share)) if fault is not None]
    assert not faults, "\n".join(map(str, faults[:3]))


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_depends_on_its_seed_target_and_number(name: str) -> None:
    target = TARGETS[name]
    assert repr(target.make(chance(target, 3, 5))) == repr(target.make(chance(target, 3, 5)))
    assert len({repr(target.make(chance(target, 3, number))) for number in range(20)}) > 5


def test_each_target_gets_its_share() -> None:
    shares = counts(list(TARGETS), 1_000_000)
    assert abs(sum(shares.values()) - 1_000_000) < len(TARGETS)
    assert shares["gguf"] == pytest.approx(
        shares["template"] * TARGETS["gguf"].share / TARGETS["template"].share, rel=0.01
    )


# --- the judge -----------------------------------------------------------------------------------------------------------


def judged(use: object, **limits: float) -> list[str]:
    target = Target(name="x", make=random.Random.random, use=use, refusals=(ClientError,), **limits)  # type: ignore[arg-type]
    return [fault.reason for _, fault in play(target, 1, range(1)) if fault is not None]


def refuse(_: object) -> None:
    raise ClientError("it is wrong")


def refuse_silently(_: object) -> None:
    raise ClientError("")


def fail(_: object) -> None:
    raise KeyError("x")


def work(_: object) -> int:
    return sum(range(1_000_000))


def grow(_: object) -> bytes:
    return bytes(range(256)) * (400 << 12)


def test_a_value_and_a_refusal_are_right() -> None:
    assert judged(repr) == judged(refuse) == []


def test_another_error_and_a_refusal_without_a_message_are_faults() -> None:
    assert judged(fail) == ["KeyError: 'x'"]
    assert judged(refuse_silently) == ["ClientError has no message"]


def test_time_over_the_limit_is_a_fault() -> None:
    assert "of processor time" in judged(work, cpu_s=0.001)[0]


def end_at_the_third(number: float) -> None:
    if number == chance(ENDS, 1, 2).random():
        os._exit(7)


ENDS = Target(name="ends", make=random.Random.random, use=end_at_the_third, refusals=())


@pytest.mark.slow
def test_an_input_that_ends_the_process_is_a_fault_and_the_search_continues() -> None:
    outcome = search(ENDS, 1, 5)
    assert outcome.inputs == 5
    assert [(fault.number, "ended with 7" in fault.reason) for fault in outcome.faults] == [(2, True)]


@pytest.mark.slow
def test_memory_over_the_limit_is_a_fault() -> None:
    (fault,) = search(Target(name="grows", make=random.Random.random, use=grow, refusals=()), 1, 2).faults
    assert "MB" in fault.reason


def test_a_long_input_is_shown_without_its_middle() -> None:
    assert shown("ab") == "'ab'"
    assert len(shown("a" * 10_000)) < LONGEST
