"""The events of a stream as bytes, state by state, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit.scripted_backend import INFO, ScriptedBackend
from tests.kit.served_succ import SUCC
from tlserve.api.answers import AnswerHead
from tlserve.api.options import GenerationOptions
from tlserve.chat.output.output_reader import OutputReader
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.answer_plan import (
    Choice,
    GenerationTask,
    RequestSource,
    StartedAnswer,
    TaskPrompt,
    plan_answer,
)
from tlserve.endpoints.answers.chunk_writer import ChunkWriter, StreamState
from tlserve.endpoints.answers.token_reader import TokenReader
from tlserve.endpoints.request_headers import GenerationHeaders
from tlserve.endpoints.routes.chat_completions import SHAPE
from tlserve.generation import Finish, GenerationEvent, PrefillStarted, Progress, TokenEvent
from tlserve.http import sse
from tlserve.openai.chunks import chat_chunks
from tlserve.telemetry.request_log import RequestFigures

SERVED = Served(**SUCC, backend=ScriptedBackend())
HEAD = AnswerHead(id="x", created=1, model="succ", system_fingerprint="fp")
LAST = TokenEvent(1, ord("c"), finish=Finish.LENGTH)


class OneStream:
    """The writer of one chat choice over a prompt of two tokens, and the reader that it writes from."""

    def __init__(self, *, progress: bool = False, **options: Any) -> None:
        task = GenerationTask(
            served=SERVED,
            named="succ",
            shape=SHAPE,
            options=GenerationOptions(stream=True, **options),
            prompts=[TaskPrompt(ids=(1, 2), place="messages")],
            headers=GenerationHeaders(progress=progress),
        )
        self.figures = RequestFigures()
        self.now_ms = 0.0
        reader = TokenReader(OutputReader(SERVED.tokenizer), 2, self.figures, lambda: self.now_ms)
        (request,) = plan_answer(task, INFO, 0, RequestSource("r1", "key a")).requests
        self._reader = reader
        started = StartedAnswer(task=task, head=HEAD, choices=(Choice(request=request, reader=reader),))
        self.writer = ChunkWriter(started, chat_chunks)

    def write(self, *events: GenerationEvent) -> list[str]:
        """Feed `events` as one batch; return the blocks that are written for them."""
        return self.writer.write([(0, self._reader.feed(events))]).decode().split("\n\n")[:-1]


def delta(block: str) -> Any:
    return json.loads(block.removeprefix("data: "))["choices"][0]["delta"]


def test_roles_come_once_with_the_first_prefill_and_then_pieces() -> None:
    stream = OneStream()
    assert stream.writer.state is StreamState.QUEUED
    (role,) = stream.write(PrefillStarted())
    assert (delta(role)["role"], stream.writer.state) == ("assistant", StreamState.OPENED)
    assert [delta(block) for block in stream.write(TokenEvent(0, ord("b")))] == [{"content": "b"}]
    assert [delta(block) for block in stream.write(LAST)] == [{"content": "c"}]
    assert stream.writer.end() == sse.DONE


def test_all_that_is_ready_at_the_start_is_written_in_order() -> None:
    role, first, last = OneStream().write(PrefillStarted(), TokenEvent(0, ord("b")), LAST)
    assert [delta(block).get("content") for block in (first, last)] == ["b", "c"]
    assert delta(role)["role"] == "assistant"


def test_nothing_is_written_after_the_end() -> None:
    stream = OneStream(include_usage=True)
    stream.write(PrefillStarted(), LAST)
    usage, done = stream.writer.end().decode().split("\n\n")[:2]
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 1
    assert done == "data: [DONE]"
    assert stream.writer.state is StreamState.ENDED
    with pytest.raises(KeyError):
        stream.write()


def test_progress_is_written_until_the_first_token() -> None:
    stream = OneStream(progress=True)
    assert stream.write(Progress(ahead=3)) == [": progress queue=3"]
    assert stream.writer.state is StreamState.QUEUED
    comment, role = stream.write(PrefillStarted(), Progress(done=1))
    assert (comment, delta(role)["role"]) == (": progress prefill=1/2", "assistant")
    assert [delta(block) for block in stream.write(Progress(done=2), TokenEvent(0, ord("b")))] == [{"content": "b"}]
    assert stream.write(Progress(done=2)) == []


def test_the_reader_notes_the_figures_of_its_request_at_the_times_of_its_clock() -> None:
    stream = OneStream()
    stream.now_ms = 5.0
    stream.write(PrefillStarted(cached_tokens=1))
    stream.now_ms = 9.0
    stream.write(TokenEvent(0, ord("b")))
    stream.now_ms = 11.0
    stream.write(LAST)
    figures = stream.figures
    assert (figures.began, figures.queue_ms, figures.first_token_ms) == (True, 5.0, 9.0)
    assert (figures.cached_tokens, figures.completion_tokens, figures.finish) == (1, 2, "length")
