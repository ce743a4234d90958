"""Every field of `peer_fields` is sent, and becomes what its row says: none is ignored in silence."""

import json
import re
from typing import Any

import attrs
import pytest

from tests.kit.peer_field_names import LEFT_OUT, NAMES
from tests.kit.peer_fields import ROWS, Outcome, Row
from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.chat.templates.template import Template
from tlserve.openai import field_tables
from tlserve.text.byte_tokenizer import ByteTokenizer

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/api/generate",
    "options": "/api/generate",
}
TEMPLATE = Template.parse(
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | string if tools else '' }}"
    "{% if add_generation_prompt %}{{ '>' if enable_thinking is defined and not enable_thinking else '=' }}{% endif %}"
)


class WithControl(ByteTokenizer):
    """Bytes as tokens, of which "b" is a control token: not part of the text unless that is asked for."""

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == ord("b") else super().token_bytes(token)

    def token_spelling(self, token: int) -> bytes:
        return super().token_bytes(token)


SERVED = {"template": TEMPLATE, "eos_ids": frozenset({ord("g")}), "tokenizer": WithControl()}
TIMES = re.compile(rb'"(\w+_duration|created_at)":[^,}]*')
ANSWERED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def body_of(door: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request that asks for three tokens, with `fields`."""
    if door == "options":
        return {"model": "succ", "prompt": "abc", "options": {"num_predict": 3, **fields}}
    if door == "generate":
        return {"model": "succ", "prompt": "abc", "options": {"num_predict": 3}, **fields}
    if door == "completions":
        return {"model": "succ", "prompt": "abc", "max_tokens": 3, **fields}
    messages = ANSWERED if fields.pop("messages", None) else ANSWERED[:1]
    return {"model": "succ", "messages": messages, "max_tokens": 3, **fields}


async def outcome_of(open_api: Any, door: str, fields: dict[str, Any]) -> tuple[Any, Any, str]:
    """Return the answer, what can be seen of it, and the names of the fields that were ignored."""
    backend = ScriptedBackend(Script(tokens=tuple(b"bcdefg")), attrs.evolve(INFO, context_tokens=4096))
    body = body_of(door, dict(fields))
    limit = {"max_new_tokens", "n_predict", "max_completion_tokens"} & set(fields)
    if limit:
        del body["max_tokens"]
    async with open_api(backend, **SERVED) as api:
        answer = await api.post(PATHS[door], body)
    seen = [str(request) for request in backend.requests], TIMES.sub(b"", answer.body)
    return answer, seen, answer.headers.get("x-tl-ignored") or ""


CASES = [(row, door) for row in ROWS for door in row.doors]


@pytest.mark.spec("API-155", "API-186")
@pytest.mark.parametrize(("row", "door"), CASES, ids=[f"{door}-{row.name}-{row.outcome.value}" for row, door in CASES])
async def test_each_field_of_other_servers_becomes_what_its_row_says(open_api: Any, row: Row, door: str) -> None:
    answer, seen, ignored = await outcome_of(open_api, door, {**row.beside, row.name: row.value})
    plain, before, _ = await outcome_of(open_api, door, dict(row.beside))
    assert plain.status == 200, plain.body
    if row.outcome is Outcome.REFUSED:
        error = json.loads(answer.body)["error"]
        assert answer.status in (400, 422), answer.body
        assert row.name in (error if isinstance(error, str) else error["param"])
    elif row.outcome is Outcome.HONOURED:
        assert (answer.status, ignored) == (200, ""), (answer.body, ignored)
        assert seen != before
    else:
        assert answer.status == 200, answer.body
        assert seen == before
        known = row.name in field_tables.CHAT or door in ("generate", "options")
        assert known or row.name in ignored


@pytest.mark.spec("API-186")
@pytest.mark.parametrize("peer", NAMES)
def test_every_field_of_other_servers_has_a_row(peer: str) -> None:
    rows = {row.name for row in ROWS if peer in row.read_in}
    assert {name for name in NAMES[peer].split() if name not in rows | LEFT_OUT} == set()
