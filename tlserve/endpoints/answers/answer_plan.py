"""A parsed generation request and its prompts -> the plan of its answer.

Owns what chat and completions decide in the same way (the budget, the seed, the stop ids, the ids of the answer, which choice
answers which prompt) and the `Shape` that says in what they differ. Refuses to know how an answer is made and sent.

The choices of prompt i are i * n to i * n + n - 1. Each is a request of its own, with a permit of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tlserve.chat.dialect import FROM_NOTHING, Dialect, Opening, ToolUse
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.output.deltas import Answer
from tlserve.chat.output.output_reader import OutputReader
from tlserve.chat.prompt_entries import PromptEntries
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.budget import check_min_tokens, plan_max_tokens, seed_bits
from tlserve.endpoints.answers.deadline import NO_DEADLINE, Deadline
from tlserve.endpoints.answers.token_reader import Echo, Reading
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_headers import NO_HEADERS, GenerationHeaders
from tlserve.endpoints.token_ids import check_ids
from tlserve.errors import ClientError
from tlserve.generation import BackendInfo, GenerationRequest, Grammar
from tlserve.openai.chunks import Chunks
from tlserve.openai.documents import AnswerHead, Extras, Usage
from tlserve.openai.options import GenerationOptions


@attrs.frozen(kw_only=True)
class Shape:
    """In what chat and completions differ, once there is a prompt. `default_tokens` None: as many as fit.

    `chunks` takes whether the usage is asked for, `document` whether log-probabilities are, and what each choice says besides.
    """

    id_prefix: str
    default_tokens: int | None
    chunks: Callable[[AnswerHead, bool], Chunks]
    document: Callable[[AnswerHead, Sequence[Answer], Usage, bool, Sequence[Extras]], bytes]


@attrs.frozen(kw_only=True)
class AskedPrompt:
    """One prompt: its ids, its place in the request, what its answers go on from, begin with, and are held to."""

    ids: Sequence[int]
    place: str
    opening: Opening = FROM_NOTHING
    grammar: Grammar | None = None
    echo: str | None = None


@attrs.frozen(kw_only=True)
class Asked:
    """What a request asks for; `named` is the model as it names it. Raw prompts are answered in the dialect `PLAIN`."""

    served: Served
    named: str
    options: GenerationOptions
    prompts: Sequence[AskedPrompt]
    headers: GenerationHeaders = NO_HEADERS
    deadline: Deadline = NO_DEADLINE
    dialect: Dialect = PLAIN
    tools: ToolUse | None = None


@attrs.frozen(kw_only=True)
class Choice:
    """One answer to be made: what the backend is asked, and the reading that is ready for its tokens."""

    request: GenerationRequest
    reading: Reading


@attrs.frozen(kw_only=True)
class Plan:
    """All that is decided about an answer before the backend is asked for it; a choice's place is its `index`."""

    served: Served
    choices: tuple[Choice, ...]
    options: GenerationOptions
    head: AnswerHead
    shape: Shape
    deadline: Deadline
    progress: bool = False

    def usage(self) -> Usage:
        """Return what all choices cost so far; a prompt counts once, however many choices it has."""
        usages = [choice.reading.usage() for choice in self.choices]
        prompts = usages[:: self.options.n]
        return Usage(
            prompt=sum(usage.prompt for usage in prompts),
            completion=sum(usage.completion for usage in usages),
            cached=sum(usage.cached for usage in prompts),
            reasoning=sum(usage.reasoning for usage in usages),
        )

    def prompt_extras(self, index: int) -> Extras:
        """Return what the choice `index` says of its prompt, if that was asked for: its ids and log-probabilities."""
        own, first = self.choices[index], self.choices[index - index % self.options.n]
        top, entries = self.options.prompt_logprobs, first.reading.prompt_entries
        return Extras(
            prompt_token_ids=own.request.prompt if self.options.return_token_ids else None,
            prompt_logprobs=None if top is None or entries is None else entries.entries(top),
        )


def plan_answer(api: ApiContext, exchange: ApiExchange, asked: Asked, shape: Shape) -> Plan:
    """Return the plan, and note in the exchange what it says of itself; raises ClientError for what does not fit."""
    info = asked.served.backend.info()
    exchange.notes.update(model=asked.served.model_id, prompt_tokens=sum(len(prompt.ids) for prompt in asked.prompts))
    _check_count(asked, info)
    _check_ids(asked, info)
    seed = api.draw_seed() if asked.options.seed is None else asked.options.seed
    choices = [
        _choice(exchange, asked, prompt, number, seed, max_tokens)
        for prompt, max_tokens in [(prompt, _budget(asked, prompt, info, shape)) for prompt in asked.prompts]
        for number in range(asked.options.n)
    ]
    exchange.reserve_tokens(exchange.notes["prompt_tokens"] + len(choices) * (asked.options.max_tokens or 0))
    if asked.headers.returns_seed:
        exchange.extra_headers.append(("X-TL-Seed", str(seed)))
    return Plan(
        served=asked.served,
        choices=tuple(choices),
        options=asked.options,
        head=_head(api, asked.named, info, shape),
        shape=shape,
        deadline=asked.deadline,
        progress=asked.headers.progress,
    )


def _check_count(asked: Asked, info: BackendInfo) -> None:
    count, most = len(asked.prompts) * asked.options.n, info.admission_limit
    if most is not None and count > most:
        raise ClientError(
            f"the request asks for {count} answers, and at most {most} requests are inside at once; send fewer prompts",
            param="prompt" if len(asked.prompts) > 1 else "n",
        )


def _check_ids(asked: Asked, info: BackendInfo) -> None:
    """Refuse ids that the vocabulary does not have; those of control tokens are the caller's to steer."""
    biased = [token for token, _ in asked.options.sampling.get("logit_bias", ())]
    check_ids(biased, info.vocabulary_size, "logit_bias")
    check_ids(asked.options.stop_token_ids, info.vocabulary_size, "stop_token_ids")


def _choice(
    exchange: ApiExchange, asked: Asked, prompt: AskedPrompt, number: int, seed: int, max_tokens: int
) -> Choice:
    request = _request(asked, prompt, number, seed, max_tokens, exchange.id)
    wants_entries = request.prompt_logprobs is not None
    reading = Reading(
        _reader(asked, prompt),
        len(prompt.ids),
        exchange,
        echo=Echo() if prompt.echo is None else Echo(prompt.echo, asked.options.logprobs),
        prompt_entries=PromptEntries(asked.served.tokenizer, prompt.ids) if wants_entries else None,
    )
    return Choice(request=request, reading=reading)


def _reader(asked: Asked, prompt: AskedPrompt) -> OutputReader:
    options = asked.options
    return OutputReader(
        asked.served.tokenizer,
        options.stop,
        asked.dialect,
        opening=prompt.opening,
        tools=asked.tools,
        min_tokens=options.min_tokens,
        include_stop=options.include_stop,
    )


def _budget(asked: Asked, prompt: AskedPrompt, info: BackendInfo, shape: Shape) -> int:
    if not prompt.ids:
        raise ClientError(f"{prompt.place} gives an empty prompt; send some text", param=prompt.place)
    max_tokens = plan_max_tokens(
        asked.options,
        prompt_tokens=len(prompt.ids),
        context_tokens=info.context_tokens,
        default=shape.default_tokens,
        prompt_field=prompt.place,
    )
    check_min_tokens(asked.options, max_tokens)
    return max_tokens


def _request(
    asked: Asked, prompt: AskedPrompt, number: int, seed: int, max_tokens: int, request_id: str
) -> GenerationRequest:
    options = asked.options
    return GenerationRequest(
        prompt=tuple(prompt.ids),
        max_tokens=max_tokens,
        seed=seed_bits(seed),
        choice=number,
        sampling=options.sampling_over(asked.served.default_sampling),
        stop_ids=(frozenset() if options.ignore_eos else asked.served.eos_ids) | frozenset(options.stop_token_ids),
        min_tokens=options.min_tokens,
        logprobs=options.logprobs,
        grammar=prompt.grammar,
        prompt_logprobs=_prompt_logprobs(options, number, echoes=prompt.echo is not None),
        priority=asked.headers.priority,
        cache_salt=options.cache_salt,
        progress=asked.headers.progress,
        request_id=request_id,
    )


def _prompt_logprobs(options: GenerationOptions, number: int, *, echoes: bool) -> int | None:
    """Return how many likeliest tokens the prompt's log-probabilities need: a prompt's first choice tells them for all.

    An echo has its own, for it may be sent before that of another choice.
    """
    asked = [options.prompt_logprobs if number == 0 else None, options.logprobs if echoes else None]
    return max((top for top in asked if top is not None), default=None)


def _head(api: ApiContext, named: str, info: BackendInfo, shape: Shape) -> AnswerHead:
    return AnswerHead(
        id=f"{shape.id_prefix}-{api.new_id()}",
        created=int(api.now_s()),
        model=named,
        system_fingerprint=info.system_fingerprint,
    )
