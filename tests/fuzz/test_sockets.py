"""A small fixed share of the search over sockets, and its judge; more: `python -m tests.fuzz sockets --count 100000`."""

import attrs
import pytest

from tests.fuzz.grammar import Bad
from tests.fuzz.sockets import CLOSING, Asked, Talk, answers_in, fault_of, search, talk_of


@pytest.mark.slow
@pytest.mark.spec("HTTP-44", "HTTP-57")
def test_a_live_server_answers_every_request_once_and_keeps_nothing() -> None:
    requests, _, faults = search(1, 600)
    assert requests >= 600
    assert not faults, "\n".join(map(str, faults[:3]))


def test_a_talk_depends_on_its_seed_and_number_alone() -> None:
    assert talk_of(3, 5) == talk_of(3, 5) != talk_of(3, 6)
    ids = [asked.number for number in range(50) for asked in talk_of(3, number).good]
    assert len(set(ids)) == len(ids)


# --- the judge -----------------------------------------------------------------------------------------------------------

A = Asked(b"...", "a", "GET", frozenset({200}))
BAD = Bad(b"...", "ambiguous_length", frozenset({400}))


def answer(number: str, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d x\r\nX-Request-Id: %s\r\nContent-Length: 1\r\n\r\nx" % (status, number.encode())


END = answer("closing")
RIGHT = [
    (Talk((A,), None, ()), answer("a") + END),
    (Talk((A,), BAD, ()), answer("a") + answer("?", 400)),
    (Talk((), attrs.evolve(BAD, keeps=True), ()), answer("?", 400) + answer("!", 404) + END),
    (Talk((), attrs.evolve(BAD, kind="cut_short"), ()), b""),
    (Talk((A,), None, (), leaves_at=3), b""),
]
WRONG = [
    (Talk((A,), None, ()), answer("a")),
    (Talk((A,), None, ()), END),
    (Talk((A,), None, ()), answer("b") + END),
    (Talk((A,), None, ()), answer("a") + answer("a") + END),
    (Talk((A,), None, ()), answer("a", 500) + END),
    (Talk((A,), None, ()), b"garbage"),
    (Talk((A,), BAD, ()), answer("a")),
    (Talk((A,), BAD, ()), answer("a") + answer("?")),
    (Talk((A,), BAD, ()), answer("a") + answer("?", 400) + END),
    (Talk((A,), BAD, ()), answer("a") + answer("?", 400) + answer("!", 404)),
    (Talk((), attrs.evolve(BAD, any_answer=True), ()), answer("?", 500)),
]


@pytest.mark.parametrize(("talk", "raw"), RIGHT)
def test_right_answers_pass(talk: Talk, raw: bytes) -> None:
    assert fault_of(talk, raw, closed=True) == ""


@pytest.mark.parametrize(("talk", "raw"), WRONG)
def test_every_wrong_answer_is_detected(talk: Talk, raw: bytes) -> None:
    assert fault_of(talk, raw, closed=True) != ""


def test_a_connection_that_stays_open_is_a_fault() -> None:
    assert fault_of(Talk((A,), None, ()), answer("a") + END, closed=False) != ""


def test_an_answer_that_was_cut_does_not_count() -> None:
    assert [found.number for found in answers_in(answer("a") + answer("b")[:-1], ["GET", "GET"])] == ["a"]
    assert CLOSING.endswith(b"Connection: close\r\n\r\n")
