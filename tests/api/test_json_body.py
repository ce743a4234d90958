"""Bodies that are not one JSON object (RFC 8259): always a 400, in linear time."""

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.api.json_body import outline_of, parse_object
from tlserve.errors import ClientError

NOT_AN_OBJECT = [
    b"",
    b"  \n",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"5",
    b"true",
    b"{} x",
    b"{}{}",
    b"{,}",
    b'{"a":1,}',
    b"{'a':1}",
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":01}',
    b'{"a":tru}',
    b'{"a":"\x01"}',
    b'{"a":"\xff"}',
    b'{"a":{"b":"\xff"}}',
    b'{"\xff":1}',
    b'{"a":"\\ud800"}',
    b'{"a":"\\ud800 x"}',
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a":"' + b"[" * 100,
    '{"a":1}'.encode("utf-16"),
    '{"a":1}'.encode("utf-16-le"),
    '{"a":1}'.encode("utf-16-be"),
    '{"a":1}'.encode("utf-32"),
]


@pytest.mark.spec("API-1")
@pytest.mark.parametrize("body", NOT_AN_OBJECT, ids=lambda body: repr(body[:16]))
def test_a_body_that_is_not_one_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ClientError) as refused:
        parse_object(body)
    assert refused.value.code is None
    assert len(refused.value.message) > 10


@pytest.mark.spec("CASE-18", "API-100")
@pytest.mark.parametrize(
    "body",
    [b'{"model":1,"model":2}', b'{"x":{"model":1,"model":2}}', b'{"x":[{"model":1,"\\u006dodel":2}]}'],
)
def test_a_duplicate_name_is_refused_by_name_at_any_depth(body: bytes) -> None:
    with pytest.raises(ClientError, match="twice") as refused:
        parse_object(body)
    assert refused.value.param == "model"


def test_colons_and_brackets_inside_strings_do_not_count() -> None:
    body = json.dumps({"a": "[" * 1000 + '\\"::{', "b": ':"' * 9}).encode()
    assert [json.loads(bytes(raw)) for raw in parse_object(body).values()] == ["[" * 1000 + '\\"::{', ':"' * 9]


def test_nesting_is_allowed_up_to_the_limit_and_refused_one_past_it() -> None:
    parse_object(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", max_depth=64)
    with pytest.raises(ClientError, match="64"):
        parse_object(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", max_depth=64)


def test_numbers_of_any_length_are_left_to_their_field() -> None:
    assert bytes(parse_object(b'{"a":1e400,"b":{"c":' + b"9" * 5000 + b"}}")["a"]) == b"1e400"


@pytest.mark.spec("API-100")
@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 1_000_000,
        b'{"' + b"\\" * 1_999_999,
        b'"' * 2_000_000,
        b"[]" * 1_000_000,
        b'{"a":[' + b"[]," * 600_000 + b"[]]}",
        b"{" + b'"a":1,' * 300_000 + b'"a":1}',
    ],
    ids=["unclosed", "backslashes", "quotes", "pairs", "lists", "names"],
)
def test_hostile_megabytes_take_linear_time(body: bytes) -> None:
    start = time.process_time()
    with contextlib.suppress(ClientError):
        parse_object(body)
    assert time.process_time() - start < 2.0


@given(st.binary(max_size=200))
def test_any_bytes_give_members_or_a_client_error(body: bytes) -> None:
    with contextlib.suppress(ClientError):
        parse_object(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.booleans())
def test_every_object_that_json_writes_is_read_the_same(value: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert {name: json.loads(bytes(raw)) for name, raw in parse_object(body).items()} == value


@pytest.mark.spec("API-1")
@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"k": inner})))
def test_the_depth_that_is_refused_is_the_real_depth(value: Any) -> None:
    def depth(node: Any) -> int:
        inner = node.values() if isinstance(node, dict) else node
        return 1 + max((depth(child) for child in inner), default=0)

    body = json.dumps({"a": value}).encode()
    real = 1 + depth(value)
    parse_object(body, max_depth=real)
    with pytest.raises(ClientError):
        parse_object(body, max_depth=real - 1)


# --- in windows, so that other threads get their turn ------------------------------------------------------------------


@pytest.mark.spec("API-47")
@given(
    st.lists(st.sampled_from([b'"', b"\\", b"{", b"}", b":", b"a", b"\n", b'\\"', b'"x"', b"\xff"]), max_size=60),
    st.integers(1, 9),
)
def test_the_outline_is_the_same_in_windows_of_any_size(pieces: list[bytes], window_bytes: int) -> None:
    body = b"".join(pieces)
    assert outline_of(body, window_bytes) == outline_of(body, 1 << 20)


@pytest.mark.spec("API-47")
def test_a_string_that_fills_many_windows_is_left_out_in_linear_time() -> None:
    body = b'{"a": "' + b"x\\\\" * (1 << 20) + b'", "b": {}}'
    begin = time.process_time()
    assert outline_of(body, 64) == b"{: , : {}}"
    assert time.process_time() - begin < 2
