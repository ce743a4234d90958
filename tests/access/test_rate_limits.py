"""The count of a minute, compared with a plain list of events."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tlserve.access.rate_limits import WINDOW_S, MinuteWindow

LIMIT = 7


class Windows(RuleBasedStateMachine):
    """Use the amounts that `wait_s` allows, undo some, let time pass: no 60 seconds have more than the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.window = MinuteWindow()
        self.now_s = 1000.25
        self.taken: list[list[float]] = []  # [time, count]

    @rule(count=st.integers(1, LIMIT))
    def take(self, count: int) -> None:
        if self.window.wait_s(count, LIMIT, self.now_s) == 0:
            self.window.add(count, self.now_s)
            self.taken.append([self.now_s, count])

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.taken))
        count = data.draw(st.integers(0, int(event[1])))
        self.window.take_back(count, event[0], self.now_s)
        event[1] -= count

    @rule(passed_s=st.sampled_from([0.0, 0.5, 1.0, 7.75, 59.5, 60.0, 61.0, 500.0]) | st.floats(0, 130))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule(count=st.integers(1, LIMIT))
    def wait_as_told(self, count: int) -> None:
        wait_s = self.window.wait_s(count, LIMIT, self.now_s)
        assert wait_s <= WINDOW_S + 1
        if wait_s > 1:
            assert self.window.wait_s(count, LIMIT, self.now_s + wait_s / 2) > 0
        self.now_s += wait_s
        assert self.window.wait_s(count, LIMIT, self.now_s) < 1e-6

    @invariant()
    def any_minute_holds_the_limit(self) -> None:
        for start_s, _ in self.taken:
            inside = sum(count for time_s, count in self.taken if start_s <= time_s <= start_s + WINDOW_S)
            assert inside <= LIMIT

    @invariant()
    def what_is_used_is_what_the_last_minute_held_and_at_most_a_second_more(self) -> None:
        used = self.window.used(self.now_s)
        least = sum(count for time_s, count in self.taken if time_s >= self.now_s - WINDOW_S)
        most = sum(count for time_s, count in self.taken if time_s > self.now_s - WINDOW_S - 1)
        assert least <= used <= most


@pytest.mark.spec("ACC-20")
def test_no_minute_holds_more_than_the_limit() -> None:
    run_state_machine_as_test(Windows)


@pytest.mark.spec("ACC-20")
@given(st.lists(st.floats(0, 100), max_size=200), st.integers(1, 20))
def test_a_greedy_client_gets_the_limit_in_each_window_and_never_more(gaps: list[float], limit: int) -> None:
    window, now_s, taken = MinuteWindow(), 5.0, []
    for gap_s in gaps:
        now_s += gap_s
        while window.wait_s(1, limit, now_s) == 0:
            window.add(1, now_s)
            taken.append(now_s)
        # it is full now after any waits: at most a second more than a minute, and never more than the limit
        assert sum(time_s > now_s - WINDOW_S - 1 for time_s in taken) >= limit
        assert sum(time_s >= now_s - WINDOW_S for time_s in taken) <= limit


@pytest.mark.spec("ACC-50")
def test_the_whole_limit_can_be_used_at_once_and_is_freed_at_once() -> None:
    window = MinuteWindow()
    window.add(10, 100.5)
    assert window.used(160.9) == 10
    assert window.wait_s(1, 10, 100.5) == 60.5
    assert window.used(161.0) == 0


def test_a_long_silence_forgets_everything() -> None:
    window = MinuteWindow()
    for second in range(100):
        window.add(1, float(second))
    assert window.used(99.0) == 61
    assert window.used(1e9) == 0


def test_a_clock_that_goes_back_changes_nothing() -> None:
    window = MinuteWindow()
    window.add(3, 100.0)
    assert window.used(50.0) == 3
    assert not math.isnan(window.wait_s(3, 3, 50.0))
