"""A generation task and its prompts -> the plan of the answer; and the one step from the plan to an answer under way.

Owns what is decided in the same way for all kinds of answers (the budget, the stop ids, which choice answers which prompt), and
the `AnswerShape`, which holds their differences. `plan_answer` is pure; `apply_plan` does what the plan says. Does not know how
an answer is generated and sent.

The choices of prompt i are i * n to i * n + n - 1. Each is a request of its own to the backend, with a permit of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import attrs

from tlserve.api.answers import AnswerHead, Extras, Usage
from tlserve.api.errors import ErrorAnswer
from tlserve.api.options import GenerationOptions
from tlserve.chat.dialect import FROM_NOTHING, Dialect, Opening, ToolUse
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.output.output_reader import OutputReader
from tlserve.chat.prompt_entries import PromptEntries
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.budget import check_ids, plan_max_tokens, seed_bits
from tlserve.endpoints.answers.deadline import NO_DEADLINE, Deadline
from tlserve.endpoints.answers.token_reader import NO_ECHO, AnswerPart, Echo, Ready, TokenReader
from tlserve.endpoints.answers.word_tokens import NO_WORDS, WordTokens
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_requests
from tlserve.endpoints.request_headers import NO_HEADERS, GenerationHeaders
from tlserve.errors import ClientError
from tlserve.generation import BackendInfo, GenerationRequest, Grammar
from tlserve.http.sse import EVENTS, StreamForm
from tlserve.telemetry.request_log import RequestFigures

SEED = "X-TL-Seed"


class AnswerWriter(Protocol):
    """Writes the stream of one answer, piece by piece."""

    def write(self, ready: Ready) -> bytes:
        """Return what to send for the parts that became ready together."""

    def end(self) -> bytes:
        """Return what follows the last part."""

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return what ends a stream that an error has cut."""


@attrs.frozen(kw_only=True)
class AnswerShape:
    """The form of the answers to one kind of request.

    `default_tokens` None: as many as fit. `clips`: a limit of tokens that does not fit the context is lowered, not refused.
    `whole` takes the parts of each choice; `writer` writes streams, which have the form `stream`. `settle` is awaited when the
    answer is complete, or was cut by an error, before the last of it is sent.
    """

    id_prefix: str
    default_tokens: int | None = None
    clips: bool = False
    whole: Callable[[StartedAnswer, Sequence[Sequence[AnswerPart]]], bytes]
    writer: Callable[[StartedAnswer], AnswerWriter]
    stream: StreamForm = EVENTS
    settle: Callable[[], Awaitable[None]] | None = None


@attrs.frozen(kw_only=True)
class TaskPrompt:
    """One prompt: its ids, its place in the request for error messages, and how its answers begin and must look.

    `conversation` is the name that all requests of a short conversation share, "" if the prompt has none.
    `only_echo`: its answers end before their first token.
    """

    ids: Sequence[int]
    place: str
    opening: Opening = FROM_NOTHING
    grammar: Grammar | None = None
    echo: str | None = None
    only_echo: bool = False
    conversation: str = ""


@attrs.frozen(kw_only=True)
class GenerationTask:
    """The work of one request; `named` is the model's name in the request. Raw prompts have the dialect `PLAIN`."""

    served: Served
    named: str
    shape: AnswerShape
    options: GenerationOptions
    prompts: Sequence[TaskPrompt]
    headers: GenerationHeaders = NO_HEADERS
    deadline: Deadline = NO_DEADLINE
    dialect: Dialect = PLAIN
    tools: ToolUse | None = None
    words: WordTokens = NO_WORDS

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts."""
        return sum(len(prompt.ids) for prompt in self.prompts)


@attrs.frozen
class RequestSource:
    """The id of the HTTP request that an answer is for, whose request it is, and whose caches it uses."""

    request_id: str
    tenant: str
    cache_owner: str = ""


# --- the plan ----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class AnswerPlan:
    """All that is decided about an answer before anything is done for it; a choice's place is its index in `requests`.

    `reserved_tokens`: those of the prompts, and what the request allows its answers.
    """

    task: GenerationTask
    seed: int
    system_fingerprint: str
    requests: tuple[GenerationRequest, ...]
    reserved_tokens: int


def plan_answer(task: GenerationTask, info: BackendInfo, seed: int, source: RequestSource) -> AnswerPlan:
    """Return the plan; raises ClientError if the task does not fit the model. `seed`: the request's, or a drawn one."""
    _check_count(task, info)
    _check_ids(task, info)
    budgets = [_budget(task, prompt, info) for prompt in task.prompts]
    requests = tuple(
        _request(task, prompt, number, seed, max_tokens, source)
        for prompt, max_tokens in zip(task.prompts, budgets, strict=True)
        for number in range(task.options.n)
    )
    return AnswerPlan(
        task=task,
        seed=seed,
        system_fingerprint=info.system_fingerprint,
        requests=requests,
        reserved_tokens=task.prompt_tokens + len(requests) * (task.options.max_tokens or 0),
    )


def _check_count(task: GenerationTask, info: BackendInfo) -> None:
    count, most = len(task.prompts) * task.options.n, info.admission_limit
    if most is not None and count > most:
        raise ClientError(
            f"the request asks for {count} answers, but this server admits at most {most} at once; send fewer prompts",
            param="prompt" if len(task.prompts) > 1 else "n",
        )


def _check_ids(task: GenerationTask, info: BackendInfo) -> None:
    """Refuse ids that the vocabulary does not have; a caller may steer the ids of control tokens."""
    biases, stop_ids = task.options.sampling.get("logit_bias"), task.options.stop_token_ids
    if biases:
        check_ids([token for token, _ in biases], info.vocabulary_size, "logit_bias")
    if stop_ids:
        check_ids(stop_ids, info.vocabulary_size, "stop_token_ids")
    check_ids(task.options.allowed_ids, info.vocabulary_size, "allowed_token_ids")


def _budget(task: GenerationTask, prompt: TaskPrompt, info: BackendInfo) -> int:
    if not prompt.ids:
        raise ClientError(f"{prompt.place} gives an empty prompt; send some text", param=prompt.place)
    return plan_max_tokens(
        task.options,
        prompt_tokens=len(prompt.ids),
        context_tokens=info.context_tokens,
        default=task.shape.default_tokens,
        clips=task.shape.clips,
        prompt_field=prompt.place,
    )


def _request(
    task: GenerationTask, prompt: TaskPrompt, number: int, seed: int, max_tokens: int, source: RequestSource
) -> GenerationRequest:
    options = task.options
    sampling = options.sampling_over(task.served.default_sampling)
    return GenerationRequest(
        prompt=tuple(prompt.ids),
        max_tokens=max_tokens,
        seed=seed_bits(seed),
        choice=number,
        sampling=sampling if task.words.dry is None else attrs.evolve(sampling, dry=task.words.dry),
        stop_ids=(frozenset() if options.ignore_eos else task.served.eos_ids) | frozenset(options.stop_token_ids),
        min_tokens=options.min_tokens,
        allowed_ids=options.allowed_ids,
        banned=task.words.banned,
        logprobs=options.logprobs,
        grammar=prompt.grammar,
        prompt_logprobs=_prompt_logprobs(options, number, echoes=prompt.echo is not None),
        priority=task.headers.priority,
        cache_salt=options.cache_salt,
        progress=task.headers.progress,
        request_id=source.request_id,
        tenant=source.tenant,
        cache_owner=source.cache_owner,
        conversation=prompt.conversation,
    )


def _prompt_logprobs(options: GenerationOptions, number: int, *, echoes: bool) -> int | None:
    """Return the number of likeliest tokens for the prompt's log-probabilities: a prompt's first choice has them for all.

    An echo has its own, because it may be sent before the echo of another choice.
    """
    asked = [options.prompt_logprobs if number == 0 else None, options.logprobs if echoes else None]
    return max((top for top in asked if top is not None), default=None)


# --- the answer under way ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Choice:
    """One answer under way: the request to the backend, and the reader of its tokens."""

    request: GenerationRequest
    reader: TokenReader


@attrs.frozen(kw_only=True)
class StartedAnswer:
    """The answer to a task, under way; a choice's place is its `index`. The figures are those of its exchange."""

    task: GenerationTask
    head: AnswerHead
    choices: tuple[Choice, ...]
    figures: RequestFigures = attrs.field(factory=RequestFigures)
    elapsed_ms: Callable[[], float] = lambda: 0.0

    def usage(self) -> Usage:
        """Return the cost of all choices so far; a prompt counts once, however many choices it has."""
        usages = [choice.reader.usage() for choice in self.choices]
        prompts = usages[:: self.task.options.n]
        return Usage(
            prompt=sum(usage.prompt for usage in prompts),
            completion=sum(usage.completion for usage in usages),
            cached=sum(usage.cached for usage in prompts),
            reasoning=sum(usage.reasoning for usage in usages),
        )

    def prompt_usage(self) -> Usage:
        """Return the cost of the prompts alone."""
        return attrs.evolve(self.usage(), completion=0, reasoning=0)

    def prompt_extras(self, index: int) -> Extras:
        """Return the ids and log-probabilities of the prompt of choice `index`, as far as they were requested."""
        options = self.task.options
        own, first = self.choices[index], self.choices[index - index % options.n]
        top, entries = options.prompt_logprobs, first.reader.prompt_entries
        return Extras(
            prompt_token_ids=own.request.prompt if options.return_token_ids else None,
            prompt_logprobs=None if top is None or entries is None else entries.entries(top),
        )


def apply_plan(api: ApiContext, exchange: ApiExchange, plan: AnswerPlan) -> StartedAnswer:
    """Reserve the tokens of a plan, put its seed into the headers, and return its answer; raises what `Entry.reserve` does."""
    exchange.figures.prepared_ms = exchange.elapsed_ms()
    exchange.hold_bytes(bytes_of_requests(plan.requests))
    exchange.reserve_tokens(plan.reserved_tokens)
    if plan.task.headers.returns_seed:
        exchange.extra_headers.append((SEED, str(plan.seed)))
    head = AnswerHead(
        id=f"{plan.task.shape.id_prefix}{api.new_id()}",
        created=int(api.now_s()),
        model=plan.task.named,
        system_fingerprint=plan.system_fingerprint,
    )
    choices = (_choice(plan, index, exchange) for index in range(len(plan.requests)))
    return StartedAnswer(
        task=plan.task,
        head=head,
        choices=tuple(choices),
        figures=exchange.figures,
        elapsed_ms=exchange.elapsed_ms,
    )


def _choice(plan: AnswerPlan, index: int, exchange: ApiExchange) -> Choice:
    task, request = plan.task, plan.requests[index]
    prompt = task.prompts[index // task.options.n]
    reader = TokenReader(
        _output_reader(task, prompt),
        len(prompt.ids),
        exchange.figures,
        exchange.elapsed_ms,
        echo=NO_ECHO if prompt.echo is None else Echo(prompt.echo, task.options.logprobs, prompt.only_echo),
        prompt_entries=None if request.prompt_logprobs is None else PromptEntries(task.served.tokenizer, prompt.ids),
        by_id=task.options.tokens_as_ids,
    )
    return Choice(request=request, reader=reader)


def _output_reader(task: GenerationTask, prompt: TaskPrompt) -> OutputReader:
    options = task.options
    return OutputReader(
        task.served.tokenizer,
        options.stop,
        task.dialect,
        opening=prompt.opening,
        tools=task.tools,
        min_tokens=options.min_tokens,
        include_stop=options.include_stop,
        shows_controls=options.shows_controls,
    )
