"""A hundred thousand messages of a grammar for framing; a failure gives the command that repeats it.

More, or others: `python -m tests.fuzz.framing --inputs 1000000 --seed 7`.
"""

import random

import attrs
import pytest

from tests.fuzz.framing import Failure, Seen, conversation, fault_of, fuzz, numbers_for, read_statuses
from tests.fuzz.grammar import KINDS, SMUGGLED, Bad, Conversation, Good, bad_message

INPUTS = 10_000


@pytest.mark.spec("HTTP-44", "HTTP-57")
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_thousand_messages_get_the_answers_of_the_grammar(seed: int) -> None:
    failures = [failure for numbers in numbers_for(seed, INPUTS) for failure in fuzz(seed, numbers)]
    assert not failures, "\n".join(map(str, failures[:3]))


def test_a_conversation_depends_on_its_seed_and_number_alone() -> None:
    assert conversation(3, 5) == conversation(3, 5) != conversation(3, 6)
    batches = list(numbers_for(3, 2000))
    assert [number for batch in batches for number in batch] == list(range(sum(map(len, batches))))
    assert sum(conversation(3, number).inputs for batch in batches for number in batch) >= 2000


def test_every_kind_of_message_is_in_every_run() -> None:
    rng = random.Random(0)
    kinds = {bad_message(rng).kind for _ in range(500)}
    assert kinds == {kind.make.__name__.strip("_") for kind in KINDS}


# --- the check itself -------------------------------------------------------------------------------------------------

A = Good(b"...", "POST", "/a", b"x")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
BAD = Bad(b"...", "ambiguous_length", frozenset({400}))
SAW_A = ("POST", "/a", b"x")
SAW_BEHIND = ("GET", SMUGGLED, b"")

RIGHT = [
    (Conversation((A,), None), OK, [SAW_A]),
    (Conversation((A,), BAD), OK + REFUSED, [SAW_A]),
    (Conversation((), attrs.evolve(BAD, keeps=True)), REFUSED + OK, [SAW_BEHIND]),
    (Conversation((), attrs.evolve(BAD, kind="cut_short")), b"", []),
    (Conversation((), attrs.evolve(BAD, any_answer=True)), OK, [SAW_A]),
]
WRONG = [
    (Conversation((A,), None), b"", []),
    (Conversation((A,), None), OK, [("POST", "/a", b"y")]),
    (Conversation((A,), None), REFUSED, [SAW_A]),
    (Conversation((A,), None), OK + OK, [SAW_A]),
    (Conversation((A,), None), b"garbage", [SAW_A]),
    (Conversation((A, A), None), OK, [SAW_A]),
    (Conversation((A,), BAD), OK + OK, [SAW_A]),
    (Conversation((A,), BAD), OK + REFUSED + OK, [SAW_A, SAW_BEHIND]),
    (Conversation((), BAD), REFUSED.replace(b"400", b"500"), []),
    (Conversation((), BAD), b"", []),
    (Conversation((), attrs.evolve(BAD, keeps=True)), REFUSED, [("POST", "/bad", b"")]),
    (Conversation((), attrs.evolve(BAD, any_answer=True)), REFUSED.replace(b"400", b"500"), []),
]


@pytest.mark.parametrize(("said", "answer", "seen"), RIGHT)
def test_the_judge_lets_right_answers_pass(said: Conversation, answer: bytes, seen: list[Seen]) -> None:
    assert fault_of(said, answer, seen) == ""


@pytest.mark.parametrize(("said", "answer", "seen"), WRONG)
def test_the_judge_sees_every_wrong_answer(said: Conversation, answer: bytes, seen: list[Seen]) -> None:
    assert fault_of(said, answer, seen) != ""


def test_answers_are_read_by_their_lengths() -> None:
    interim = b"HTTP/1.1 100 \r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"
    assert read_statuses(interim + OK + head + REFUSED, ["POST", "HEAD"]) == [200, 200, 400]
    assert read_statuses(head + b"short", ["GET"]) is None


def test_a_failure_gives_the_command_that_repeats_it() -> None:
    assert "python -m tests.fuzz.framing --seed 4 --only 9" in str(Failure(4, 9, "why", b"", b""))
