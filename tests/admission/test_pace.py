"""When to retry, estimated from the measured rate of ends; and the refusal with that estimate."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.engine.gated_model import GatedModel
from tests.kit.engine.local_backend import local_backend
from tests.kit.model.tiny_models import succ_model
from tlserve.admission.pace import LONGEST_S, SHORTEST_S, Pace
from tlserve.admission.permits import Admission
from tlserve.errors import Overloaded
from tlserve.generation import GenerationRequest


def steady(each_s: float, count: int, start_s: float = 100.0) -> tuple[Pace, float]:
    """Return a pace after `count` requests that arrived together and ended one after the other, and the time after them."""
    pace = Pace()
    for _ in range(count + 1):
        pace.begin(start_s)
    for number in range(1, count + 1):
        pace.end(start_s + number * each_s)
    return pace, start_s + count * each_s


@pytest.mark.spec("ACC-26")
@pytest.mark.parametrize(
    ("each_s", "waiting", "retry_s"),
    [(0.5, 1, 1), (0.5, 8, 4), (2.0, 3, 6), (2.0, 0, 2), (0.01, 50, 1), (1.5, 1000, LONGEST_S), (1.0, 1, SHORTEST_S)],
)
def test_the_estimate_is_the_time_in_which_as_many_requests_end_as_wait(
    each_s: float, waiting: int, retry_s: int
) -> None:
    pace, now_s = steady(each_s, 10)
    assert pace.retry_after_s(waiting, now_s) == retry_s


def test_before_the_first_end_the_estimate_grows_with_the_time() -> None:
    pace = Pace()
    pace.begin(10.0)
    assert [pace.retry_after_s(2, 10.0 + passed_s) for passed_s in (0.0, 2.0, 7.0, 100.0)] == [1, 4, 14, LONGEST_S]


def test_a_server_without_requests_says_one_second() -> None:
    assert Pace().retry_after_s(5, 1000.0) == SHORTEST_S


@pytest.mark.spec("ACC-55")
def test_a_stall_lengthens_the_estimate() -> None:
    pace, now_s = steady(1.0, 10)
    assert pace.retry_after_s(3, now_s) < pace.retry_after_s(3, now_s + 20)


@pytest.mark.spec("ACC-55")
def test_idle_time_does_not_count() -> None:
    pace = Pace()
    for hour in range(20):
        pace.begin(hour * 3600.0)
        pace.end(hour * 3600.0 + 2)
    pace.begin(100_000.0)
    assert pace.retry_after_s(3, 100_000.0) == 6


def test_an_old_pace_is_forgotten() -> None:
    pace, now_s = steady(50.0, 20)
    for number in range(40):
        pace.begin(now_s + number)
        pace.end(now_s + number + 1)
    assert pace.retry_after_s(5, now_s + 40) == 5


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=60), st.integers(0, 10**9))
def test_the_estimate_is_always_a_whole_number_from_1_to_60(happenings: list[tuple[bool, float]], waiting: int) -> None:
    pace, now_s, inside = Pace(), 0.0, 0
    for begins, passed_s in happenings:
        now_s += passed_s
        if begins:
            pace.begin(now_s)
            inside += 1
        elif inside:
            pace.end(now_s)
            inside -= 1
        assert pace.retry_after_s(waiting, now_s) in range(SHORTEST_S, LONGEST_S + 1)


@pytest.mark.spec("ACC-26")
async def test_the_refusal_of_a_full_queue_has_the_estimate(autojump_clock) -> None:
    admission = Admission(1, lambda: 4)
    for _ in range(3):
        with admission.permit():
            await trio.sleep(3)
    with admission.permit(), pytest.raises(Overloaded) as caught, admission.permit():
        pass
    assert caught.value.retry_after_s == 12
    assert "retry in 12 s" in caught.value.message


async def test_a_backend_estimates_by_the_requests_in_its_queue() -> None:
    model = GatedModel(succ_model())
    request = GenerationRequest(prompt=(97,), max_tokens=3, seed=0)
    async with local_backend(model, admission=2, max_num_seqs=1) as backend:
        async with backend.generate(request), backend.generate(request):
            with pytest.raises(Overloaded) as caught:
                async with backend.generate(request):
                    pass
        assert caught.value.retry_after_s in range(SHORTEST_S, LONGEST_S + 1)
        model.open_all()
