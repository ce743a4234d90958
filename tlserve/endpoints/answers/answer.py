"""A generation task -> its answer, whole or as a stream.

Owns the order: wait for the model, plan, apply, generate, send. Both forms read the same parts. Does not know routes and bodies:
the differences between kinds of answers are in the task's shape.
"""

from __future__ import annotations

import attrs

from tlserve.endpoints.answers.answer_plan import GenerationTask, RequestSource, StartedAnswer, apply_plan, plan_answer
from tlserve.endpoints.answers.choices import open_choices
from tlserve.endpoints.answers.residency import loaded
from tlserve.endpoints.answers.stream import stream_answer
from tlserve.endpoints.answers.token_reader import AnswerPart
from tlserve.endpoints.answers.word_tokens import find_word_tokens
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_parts

_DOCUMENT_BYTES = 100
"""What one token of a prompt with log-probabilities takes in a document, at least."""


async def answer(api: ApiContext, exchange: ApiExchange, task: GenerationTask) -> None:
    """Generate and send the answer to `task`, once its model is in memory."""
    async with loaded(exchange, task.served, task.deadline):
        await _answer(api, exchange, await _with_words(api, exchange, task))


async def _with_words(api: ApiContext, exchange: ApiExchange, task: GenerationTask) -> GenerationTask:
    """Return the task with the tokens of the words that its options name."""
    if not task.options.names_words:
        return task
    with task.deadline.obeyed():
        words = await find_word_tokens(api.offload, task.served.tokenizer, task.options, exchange.tenant)
    return attrs.evolve(task, words=words)


async def _answer(api: ApiContext, exchange: ApiExchange, task: GenerationTask) -> None:
    started = start_answer(api, exchange, task)
    if task.options.stream:
        await stream_answer(exchange, started, api.settings.ping_interval_ms)
    else:
        await _send_whole(api, exchange, started)


def start_answer(api: ApiContext, exchange: ApiExchange, task: GenerationTask) -> StartedAnswer:
    """Plan the answer to `task`, reserve what it needs, and return it; nothing is generated yet."""
    exchange.figures.prompt_tokens = task.prompt_tokens
    seed = api.draw_seed() if task.options.seed is None else task.options.seed
    source = RequestSource(exchange.id, exchange.tenant, exchange.entry.cache_owner)
    plan = plan_answer(task, task.served.backend.info(), seed, source)
    return apply_plan(api, exchange, plan)


async def _send_whole(api: ApiContext, exchange: ApiExchange, started: StartedAnswer) -> None:
    document = await _whole_document(api, exchange, started)
    if started.task.shape.settle is not None:
        await started.task.shape.settle()
    await exchange.send(document)


async def _whole_document(api: ApiContext, exchange: ApiExchange, started: StartedAnswer) -> bytes:
    """Generate the answer; its log-probabilities are counted as memory of the request."""
    task = started.task
    parts: list[list[AnswerPart]] = [[] for _ in started.choices]
    async with open_choices(task.served.backend, started.choices, task.deadline) as batches:
        async for ready in batches:
            for index, gained in ready:
                parts[index] += gained
            if task.options.logprobs is not None:
                exchange.hold_bytes(sum(bytes_of_parts(gained) for _, gained in ready))
    size_bytes = _DOCUMENT_BYTES * sum(len(choice.request.prompt) for choice in started.choices)
    if task.options.prompt_logprobs is None:
        return task.shape.whole(started, parts)
    return await api.offload.run(size_bytes, lambda: task.shape.whole(started, parts), exchange.tenant)
