"""Streams and whole answers against a slow, independent reading of the same tokens: any bytes, stops and batches."""

import codecs
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.scripted_backend import Script, ScriptedBackend

CHARACTERS = st.sampled_from(["a", "b", "c", "é", "漢", "👩", "\u200d", "\n", '"'])
TEXTS = st.text(CHARACTERS, min_size=1, max_size=12)
TOKENS = TEXTS.map(str.encode) | st.binary(min_size=1, max_size=12)
STOPS = st.lists(st.text(CHARACTERS, min_size=1, max_size=3), max_size=4)


def true_answer(data: bytes, stops: list[str], min_tokens: int, include: bool) -> tuple[str, str]:
    """Return content and finish: the text before the stop string that is complete first, the longest of several.

    A match that is complete within the first `min_tokens` bytes does not count.
    """
    text = data.decode(errors="replace")
    soon = len(
        codecs.getincrementaldecoder("utf-8")("replace").decode(data[:min_tokens], final=min_tokens >= len(data))
    )
    for end in range(soon + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end if include else end - max(map(len, found))], "stop"
    return text, "length"


def streamed_answer(body: bytes) -> tuple[str, list[str | None]]:
    """Return the joined content and the finish of every chunk; every line must be valid UTF-8 and JSON."""
    *events, done, end = body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    choices = [json.loads(event.removeprefix(b"data: ").decode())["choices"][0] for event in events]
    return "".join(choice["delta"]["content"] for choice in choices), [choice["finish_reason"] for choice in choices]


@pytest.mark.spec("API-25")
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=TOKENS,
    stops=STOPS,
    batch_tokens=st.integers(1, 5),
    cut=st.integers(0, 3),
    logprobs=st.booleans(),
    least=st.sampled_from([0, 0, 1, 3, 99]),
    include=st.booleans(),
)
async def test_any_tokens_give_the_true_text_whole_and_streamed(
    open_api: Any,
    data: bytes,
    stops: list[str],
    batch_tokens: int,
    cut: int,
    logprobs: bool,
    least: int,
    include: bool,
) -> None:
    kept = data[: max(1, len(data) - cut)]  # the length limit can be inside a character
    min_tokens = min(least, len(kept))
    fields = {"max_tokens": len(kept), "stop": stops, "logprobs": logprobs, "min_tokens": min_tokens}
    fields["include_stop_str_in_output"] = include
    async with open_api(ScriptedBackend(Script(tokens=tuple(data), batch_tokens=batch_tokens))) as api:
        whole = json.loads((await api.chat(**fields)).body)
        streamed, finishes = streamed_answer((await api.chat(**fields, stream=True)).body)
    choice = whole["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == true_answer(kept, stops, min_tokens, include)
    assert streamed == choice["message"]["content"]
    assert finishes == [None] * (len(finishes) - 1) + [choice["finish_reason"]]
    if logprobs:
        spelled = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
        assert spelled.decode(errors="replace").startswith(streamed)
