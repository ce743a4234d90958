"""Which ids a client can give its request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.access.request_id import choose_request_id


@pytest.mark.spec("API-34")
@pytest.mark.parametrize("offered", ["a", "x" * 128, "req-1/2 (three)", "~!@#"])
def test_a_printable_ascii_id_of_at_most_128_characters_is_echoed(offered: str) -> None:
    assert choose_request_id(offered, lambda: "fresh") == offered


@pytest.mark.spec("API-34")
@pytest.mark.parametrize(
    "offered", [None, "", "x" * 129, "x" * 1_000_000, "a\tb", "a\r\nX-Evil: 1", "é", "\x7f", "a\0"]
)
def test_any_other_id_is_replaced_by_a_fresh_one(offered: str | None) -> None:
    assert choose_request_id(offered, lambda: "fresh") == "fresh"


@pytest.mark.slow
@given(st.text())
def test_no_id_can_leave_its_header_line(offered: str) -> None:
    chosen = choose_request_id(offered, lambda: "fresh")
    assert 1 <= len(chosen) <= 128
    assert all(0x20 <= ord(character) < 0x7F for character in chosen)
