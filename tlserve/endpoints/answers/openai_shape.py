"""The shape of answers with choices, as the chat and completions of the public API have them.

Owns the step from parts to choices. Does not know the two kinds of documents: each route hands in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tlserve.api.answers import AnswerHead, Extras, Usage
from tlserve.chat.output.deltas import Answer, fold
from tlserve.endpoints.answers.answer_plan import AnswerShape, StartedAnswer
from tlserve.endpoints.answers.chunk_writer import ChunkWriter
from tlserve.endpoints.answers.token_reader import AnswerPart
from tlserve.openai.chunks import Chunks

Document = Callable[[AnswerHead, Sequence[Answer], Usage, bool, Sequence[Extras]], bytes]


def choices_shape(
    id_prefix: str,
    chunks: Callable[[AnswerHead, bool], Chunks],
    document: Document,
    *,
    default_tokens: int | None = None,
) -> AnswerShape:
    """Return the shape.

    `chunks` takes whether the usage was requested; `document` whether log-probabilities were, and the extras of each choice.
    """

    def whole(started: StartedAnswer, parts: Sequence[Sequence[AnswerPart]]) -> bytes:
        answers = [fold(part.delta for part in own) for own in parts]
        extras = [_extras(started, index, own) for index, own in enumerate(parts)]
        with_logprobs = started.task.options.logprobs is not None
        return document(started.head, answers, started.usage(), with_logprobs, extras)

    return AnswerShape(
        id_prefix=id_prefix,
        default_tokens=default_tokens,
        whole=whole,
        writer=lambda started: ChunkWriter(started, chunks),
    )


def _extras(started: StartedAnswer, index: int, parts: Sequence[AnswerPart]) -> Extras:
    tokens = [token for part in parts for token in part.tokens] if started.task.options.return_token_ids else None
    return attrs.evolve(started.prompt_extras(index), token_ids=tokens)
