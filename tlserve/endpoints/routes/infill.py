"""POST /infill: the text for a gap, in the form of llama.cpp's server.

The texts are ordinary text; with `X-TL-Special-Tokens: 1` the prompt can spell control tokens. Of long texts the part around the
gap is kept, at most half the context, and of other files what still leaves room for the answer. An answer also ends at a token
that begins another file. A limit of tokens that does not fit the context is lowered.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tlserve.api.errors import ErrorAnswer
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.infill import WINDOW_TOKENS, encode_gap, fill_tokens
from tlserve.chat.output.deltas import NOTHING, Delta, fold
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.answer import answer
from tlserve.endpoints.answers.answer_plan import AnswerShape, GenerationTask, StartedAnswer, TaskPrompt
from tlserve.endpoints.answers.chat import tokenize_limit
from tlserve.endpoints.answers.token_reader import AnswerPart, Ready
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids
from tlserve.endpoints.request_body import read_generation
from tlserve.endpoints.request_headers import SPECIAL_TOKENS, read_switch
from tlserve.http import sse
from tlserve.openai.errors import error_document
from tlserve.openai.infill import InfillRequest, InfillTimes, encode, end_fields, parse_infill, piece_fields

_ANSWER_SHARE = 4
"""Without a limit, this part of the window is what the answer is expected to need: a quarter."""


async def infill(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the text for the gap."""
    specials = read_switch(exchange.request.headers, SPECIAL_TOKENS)
    incoming = await read_generation(api, exchange, parse_infill)
    served, request = incoming.served, incoming.request
    ends = fill_tokens(served).ends
    tokenize_limit(api)(request.gap.characters)
    with incoming.deadline.obeyed():
        prompt = await api.offload.run(incoming.size_bytes, lambda: _prompt(served, request, specials), exchange.tenant)
    exchange.hold_bytes(bytes_of_ids(len(prompt.ids)))
    stop_ids = () if request.options.ignore_eos else ends
    task = GenerationTask(
        served=served,
        named=incoming.named,
        shape=SHAPE,
        options=attrs.evolve(request.options, stop_token_ids=(*request.options.stop_token_ids, *stop_ids)),
        prompts=[prompt],
        headers=incoming.headers,
        deadline=incoming.deadline,
    )
    await answer(api, exchange, task)


def _prompt(served: Served, request: InfillRequest, specials: bool) -> TaskPrompt:
    """Return the prompt; what is kept of its parts leaves room for twice the answer, as in llama.cpp."""
    context_tokens, options = served.backend.info().context_tokens, request.options
    window = min(WINDOW_TOKENS, context_tokens // 2)
    space = context_tokens - window - 2 * (options.max_tokens or window // _ANSWER_SHARE)
    ids = encode_gap(
        served.tokenizer, fill_tokens(served), request.gap, window=window, space=max(0, space), specials=specials
    )
    grammar = answer_grammar(options.format, None, PLAIN, FROM_NOTHING, served.tokenizer.special_tokens)
    return TaskPrompt(ids=ids, place="prompt", grammar=grammar)


def _times(started: StartedAnswer) -> InfillTimes:
    figures, ended_ms = started.figures, started.elapsed_ms()
    first_ms = ended_ms if figures.first_token_ms is None else figures.first_token_ms
    return InfillTimes(started_ms=figures.queue_ms or 0.0, first_ms=first_ms, ended_ms=ended_ms)


def _whole(started: StartedAnswer, parts: Sequence[Sequence[AnswerPart]]) -> bytes:
    deltas = [part.delta for part in parts[0]]
    text = fold(deltas).content
    last = deltas[-1] if deltas else NOTHING
    model, usage = started.head.model, started.usage()
    return encode(end_fields(model, text, last, usage, _times(started), has_line="\n" in text))


class InfillWriter:
    """Writes the events of one answer."""

    def __init__(self, started: StartedAnswer) -> None:
        self._started = started
        self._last: Delta = NOTHING
        self._has_line = False

    def write(self, ready: Ready) -> bytes:
        """Return an event for the text that became ready."""
        deltas = [part.delta for _, parts in ready for part in parts]
        if not deltas:
            return b""
        text = "".join(delta.content for delta in deltas)
        self._last, self._has_line = deltas[-1], self._has_line or "\n" in text
        return sse.event(encode(piece_fields(text, self._started.usage()))) if text else b""

    def end(self) -> bytes:
        """Return the last event, which has no text."""
        started = self._started
        fields = end_fields(
            started.head.model, "", self._last, started.usage(), _times(started), has_line=self._has_line
        )
        return sse.event(encode(fields))

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the event of an error."""
        return sse.event(error_document(answer))


SHAPE = AnswerShape(id_prefix="infill-", clips=True, whole=_whole, writer=InfillWriter)
