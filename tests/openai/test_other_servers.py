"""Values of other servers' fields that ask for nothing are accepted; `test_peer_fields.py` sends those that ask for something."""

import json
from typing import Any

import pytest

from tlserve.api.fields import FieldKind
from tlserve.openai import field_tables
from tlserve.openai.requests import parse_chat, parse_completion

BODIES: dict[Any, dict[str, Any]] = {
    parse_chat: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    parse_completion: {"model": "m", "prompt": "x"},
}
TABLES = {parse_chat: field_tables.CHAT, parse_completion: field_tables.COMPLETION}


@pytest.mark.spec("API-155")
@pytest.mark.parametrize("parse", BODIES)
def test_values_that_ask_for_nothing_are_accepted(parse: Any) -> None:
    body = BODIES[parse]
    refused = [(name, field) for name, field in TABLES[parse].items() if field.kind is FieldKind.LATER]
    noops = [(name, value) for name, field in refused for value in field.noops]
    assert len(noops) > 35
    for name, value in noops:
        assert parse(json.dumps({**body, name: value}).encode()) == parse(json.dumps(body).encode()), name
