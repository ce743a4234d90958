"""How members are read by a table, and how unknown members are reported."""

import json
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.api.fields import FieldKind, Table, ignored_header, inert, later, read_fields, served
from tlserve.api.json_body import parse_object
from tlserve.errors import ClientError, Refusal
from tlserve.openai import field_tables

TABLE: Table = {
    "kept": served(int, "an integer", required=True),
    "off": later(bool, "false", False),
    "idle": inert(str, "a string"),
}


def read(**members: object):
    return read_fields(parse_object(json.dumps(members).encode()), TABLE)


def test_served_fields_are_given_and_the_others_are_not() -> None:
    values = read(kept=1, off=False, idle="x", other=[1])
    assert values.given == {"kept": 1}
    assert values.unknown == ("other",)


def test_a_later_field_is_refused_unless_its_value_has_no_effect() -> None:
    with pytest.raises(Refusal) as refused:
        read(kept=1, off=True)
    assert refused.value.param == "off"


def test_a_field_without_effect_still_has_a_type() -> None:
    with pytest.raises(ClientError) as refused:
        read(kept=1, idle=5)
    assert (refused.value.param, refused.value.message) == ("idle", "idle is 5; send a string")


def test_a_missing_field_is_refused_before_any_wrong_one() -> None:
    with pytest.raises(ClientError, match="kept is missing; send an integer"):
        read(idle=5)


def test_a_long_or_nested_value_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ClientError) as refused:
        read(kept="x" * 1000)
    assert len(refused.value.message) < 200


ALL_TABLES = {
    name: table
    for name, table in vars(field_tables).items()
    if isinstance(table, dict) and name.isupper() and not name.startswith("_")
}


@pytest.mark.parametrize("name", ALL_TABLES)
def test_every_field_names_its_values_or_can_only_be_left_out(name: str) -> None:
    assert all(field.takes or field.kind is FieldKind.LATER for field in ALL_TABLES[name].values())


@pytest.mark.spec("API-4")
@pytest.mark.parametrize("name", ALL_TABLES)
def test_the_values_that_a_later_field_recommends_are_served(name: str) -> None:
    for field in ALL_TABLES[name].values():
        found = re.search(r'^(\{\}|\[.*\]|\d|true|false|"\w+")|\{"type": "text"\}', field.takes)
        if field.kind is FieldKind.LATER and found:
            assert field.is_noop(field.decode(found.group().encode()))


# --- X-TL-Ignored -------------------------------------------------------------------------------------------------


def test_ignored_names_are_listed_completely_and_the_rest_is_counted() -> None:
    assert ignored_header(["a", "b.c", "messages[].d"]) == "a, b.c, messages[].d"
    value = ignored_header([f"name_{number}" for number in range(1000)])
    assert re.fullmatch(r"(name_\d+, )+\+(\d+) more", value)
    assert value.count("name_") + int(value.split("+")[1].split()[0]) == 1000


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil%3A%201"),
        ("a, b", "a%2C%20b"),
        ("é", "%C3%A9"),
        ("", '""'),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 63 + "~"),
        ("é" * 20, "%C3%A9" * 10 + "~"),
    ],
)
def test_a_name_cannot_break_its_header_and_is_cut_between_characters(name: str, shown: str) -> None:
    assert ignored_header([name]) == shown


@pytest.mark.spec("API-102")
@given(st.lists(st.text(), max_size=60))
def test_the_header_is_short_ascii_and_never_ends_inside_an_escape(names: list[str]) -> None:
    value = ignored_header(names)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= 512
    assert not re.search(r"%(?![0-9A-F]{2})", value)
    for shown, name in zip(value.split(", "), names, strict=False):
        if not shown.endswith(("~", " more")) and shown != '""':
            assert unquote(shown) == name.encode(errors="replace").decode()
