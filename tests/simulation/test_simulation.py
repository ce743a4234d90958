"""The whole server under simulation: a fixed set of seeds, some new ones each time, and proof that a wrong run is seen."""

import json
import logging
import random
from collections.abc import Iterator

import attrs
import pytest

from tests.simulation import search
from tests.simulation.checks import own_answer, problems
from tests.simulation.plan import Ask, Client, Plan, make_plan
from tests.simulation.search import Selection, find, judged, shrink
from tests.simulation.world import Run, requests_of, simulate

FIXED = 100
NEW_S = 20.0


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_the_fixed_seeds_hold() -> None:
    played, finding = find(range(FIXED))
    assert finding is None, str(finding)
    assert played == FIXED


@pytest.mark.slow
def test_new_seeds_hold() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    _, finding = find(range(first, first + 100_000), limit_s=NEW_S)
    assert finding is None, str(finding)


def test_a_run_repeats_from_its_seed() -> None:
    for seed in (3, 11, 42):
        first, second = simulate(make_plan(seed)), simulate(make_plan(seed))
        assert [(record.request_id, record.status) for record in first.records] == [
            (record.request_id, record.status) for record in second.records
        ]
        assert [reply.body for played in first.played for reply in played.replies if not reply.ask.body["stream"]] == [
            reply.body for played in second.played for reply in played.replies if not reply.ask.body["stream"]
        ]


def test_seeds_reach_every_manner_fault_and_end() -> None:
    plans = [make_plan(seed) for seed in range(300)]
    assert len({client.manner for plan in plans for client in plan.clients}) == 8
    assert len({fault.kind for plan in plans for fault in plan.faults}) == 9
    assert {len(plan.stops) for plan in plans} == {0, 1, 2}
    assert {plan.nodes for plan in plans} == {0, 3}


def test_the_truth_is_computed_apart_from_the_server() -> None:
    ask = Ask(path="/v1/completions", body={"model": "hash", "prompt": "a", "max_tokens": 9, "stream": False}, id="r1")
    client = Client(at=0.0, manner="whole", asks=(ask,))
    run = simulate(attrs.evolve(make_plan(0), clients=(client,), faults=(), stops=(), nodes=0, has_keys=False))
    (reply,) = run.played[0].replies
    (request,) = requests_of(run)
    assert json.loads(reply.body)["choices"][0]["text"] == own_answer(request)[0]
    assert problems(run) == []
    reply.body = reply.body.replace(b'"text":"', b'"text":"x')
    assert len(problems(run)) == 1


def test_a_lost_answer_is_seen() -> None:
    run = simulate(attrs.evolve(make_plan(1), faults=(), stops=()))
    reply = next(reply for played in run.played for reply in played.replies if reply.whole and not played.left)
    reply.whole = False
    assert any("no answer came" in problem for problem in problems(run))


def test_a_failing_run_is_made_small() -> None:
    whole = Selection.whole(5)
    needed = whole.clients[-1]

    def judge(plan: Plan) -> list[str]:
        return ["fails"] if make_plan(5).clients[needed] in plan.clients else []

    small = shrink(whole, judge)
    assert (small.clients, small.faults, small.stops) == ((needed,), (), ())
    assert f"--seed 5 --clients {needed} --faults none --stops none" in small.command()


def test_an_exception_of_a_run_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: Plan) -> Run:
        raise ZeroDivisionError(plan.seed)

    monkeypatch.setattr(search, "simulate", broken)
    assert judged(make_plan(7)) == ["the run raised ZeroDivisionError(7)"]
