"""Text up to the first stop string, the same for every split, compared with a slow search of the whole text."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kit.http.feeding import assert_same_at_every_split, run_text
from tlserve.errors import ClientError
from tlserve.text.detokenizer import Detokenizer
from tlserve.text.stop_strings import MAX_STOP_CHARS, MAX_STOPS, StopStrings


class TextStream:
    """The detokenizer and the stop strings one after the other, as an answer is read."""

    def __init__(self, stops):
        self.detokenizer = Detokenizer()
        self.stops = StopStrings(stops)

    def feed(self, data):
        return self.stops.feed(self.detokenizer.feed(data))

    def finish(self):
        return self.stops.feed(self.detokenizer.finish()) + self.stops.finish()


def text_before_stop(text, stops):
    """Read `text` a character at a time; the stop that ends first wins, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        met = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(met)]
    return text


def longest_possible_start(text, stops):
    """Return the length of the longest suffix of `text` that is a proper prefix of a stop."""
    return max(
        size
        for size in range(len(text) + 1)
        if any(stop[:size] == text[len(text) - size :] and size < len(stop) for stop in stops)
    )


def run_stops(stops):
    return run_text(lambda: StopStrings(stops))


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=3), max_size=8)


@pytest.mark.spec("TEXT-14", "TEXT-30")
@given(st.text("abc", max_size=20), STOPS)
@example("abcd", ["bcd", "c"])
@example("aab", ["ab", "aaab"])
def test_any_text_at_every_split_gives_the_result_of_a_slow_search(text, stops):
    assert assert_same_at_every_split(text, run_stops(stops), count=4) == text_before_stop(text, stops)


@pytest.mark.spec("TEXT-15")
@given(st.text("abc", max_size=20), STOPS)
def test_exactly_the_longest_possible_start_of_a_stop_is_held(text, stops):
    matcher = StopStrings(stops)
    sent = matcher.feed(text)
    if not matcher.stopped:
        assert len(text) - len(sent) == longest_possible_start(text, stops) == matcher.held


@pytest.mark.spec("TEXT-27")
def test_the_held_text_is_released_when_the_match_fails():
    matcher = StopStrings(["abc"])
    assert [matcher.feed(part) for part in ("xab", "d")] == ["x", "abd"]


@pytest.mark.spec("TEXT-27")
def test_the_held_text_is_released_at_the_end():
    matcher = StopStrings(["abc"])
    assert (matcher.feed("xab"), matcher.finish(), matcher.stopped) == ("x", "ab", False)


def test_nothing_is_released_after_a_stop():
    matcher = StopStrings(["ab"])
    assert (matcher.feed("xaby"), matcher.feed("more"), matcher.finish(), matcher.stopped) == ("x", "", "", True)


@pytest.mark.spec("TEXT-14")
def test_the_occurrence_that_is_complete_first_wins():
    assert assert_same_at_every_split("xabcd", run_stops(["abcd", "c"])) == "xab"


@pytest.mark.spec("TEXT-14")
def test_the_longest_of_the_stops_that_end_together_wins():
    assert assert_same_at_every_split("xabc", run_stops(["c", "abc"])) == "x"


def test_without_stops_everything_is_released_at_once():
    assert StopStrings().feed("abc") == "abc"


@pytest.mark.spec("TEXT-16")
@pytest.mark.parametrize("stops", [["a"] * (MAX_STOPS + 1), [""], ["a", ""], ["a" * (MAX_STOP_CHARS + 1)]])
def test_stops_that_are_too_many_empty_or_overlong_are_refused(stops):
    with pytest.raises(ClientError) as refused:
        StopStrings(stops)
    assert refused.value.param == "stop"


def lines_run(work):
    """Count the lines of Python that `work` runs: a measure of time that does not depend on the machine."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.spec("TEXT-26")
def test_a_long_output_of_near_matches_takes_linear_time():
    def feed_near_matches(size):
        matcher = StopStrings(["a" * 400 + "b", "a" * 200 + "c"])
        return lines_run(lambda: [matcher.feed("a") for _ in range(size)])

    assert feed_near_matches(5000) < 12 * feed_near_matches(500)


@pytest.mark.spec("TEXT-17")
def test_text_stream_holds_back_stop_prefixes():
    stream = TextStream(["de"])
    assert [stream.feed(bytes((byte,))) for byte in b"bcde"] == ["b", "c", "", ""]
    assert (stream.stops.stopped, stream.feed(b"f"), stream.finish()) == (True, "", "")
    stream = TextStream(["de"])
    assert [stream.feed(bytes((byte,))) for byte in "dé漢d".encode()] == ["", "", "dé", "", "", "漢", ""]
    assert (stream.finish(), stream.stops.stopped) == ("d", False)


@pytest.mark.spec("TEXT-17")
@given(st.binary(max_size=16), st.lists(st.text("é\ufffda", min_size=1, max_size=3), max_size=2))
def test_a_text_stream_gives_the_same_at_every_split(data, stops):
    text = assert_same_at_every_split(data, run_text(lambda: TextStream(stops)), count=4)
    assert text == text_before_stop(data.decode("utf-8", "replace"), stops)


# --- when they count, and whether they are shown ----------------------------------------------------------------------


@pytest.mark.spec("API-128")
@given(PIECES, STOPS, st.integers(0, 6))
def test_a_match_complete_too_early_does_not_stop_but_a_later_one_does(pieces, stops, free):
    matcher = StopStrings(stops)
    released = "".join(matcher.feed(piece, stopping=number >= free) for number, piece in enumerate(pieces))
    text, soon = "".join(pieces), len("".join(pieces[:free]))
    expected, stopped = text, False
    for end in range(len(text), soon, -1):
        met = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if met:
            expected, stopped = text[: end - max(met)], True
    assert (released + matcher.finish(), matcher.stopped) == (expected, stopped)


@pytest.mark.spec("API-130")
@given(PIECES, STOPS)
def test_an_included_stop_string_is_released_and_nothing_after_it(pieces, stops):
    cut, whole = StopStrings(stops), StopStrings(stops, include=True)
    without = "".join(map(cut.feed, pieces)) + cut.finish()
    shown = "".join(map(whole.feed, pieces)) + whole.finish()
    assert (whole.stopped, shown.startswith(without)) == (cut.stopped, True)
    assert (shown[len(without) :] in stops) if cut.stopped else (shown == without)
    assert whole.held == (len("".join(pieces)) - len(shown) if cut.stopped else 0)
