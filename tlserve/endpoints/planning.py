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
from tlserve.chat.output_reader import Answer, OutputReader
from tlserve.endpoints.budget import plan_max_tokens, seed_bits
from tlserve.endpoints.call import Call, is_asked, read_priority, refuse_kv_handle
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.reading import Reading
from tlserve.endpoints.served import Served
from tlserve.errors import ClientError
from tlserve.generation import BackendInfo, GenerationRequest
from tlserve.openai.chunks import Chunks
from tlserve.openai.documents import AnswerHead, Usage
from tlserve.openai.options import GenerationOptions


@attrs.frozen(kw_only=True)
class Shape:
    """In what chat and completions differ, once there is a prompt. `default_tokens` None: as many as fit.

    `chunks` takes whether the usage is asked for, `document` whether log-probabilities are.
    """

    id_prefix: str
    default_tokens: int | None
    chunks: Callable[[AnswerHead, bool], Chunks]
    document: Callable[[AnswerHead, Sequence[Answer], Usage, bool], bytes]


@attrs.frozen(kw_only=True)
class AskedPrompt:
    """One prompt: its ids, what its answers go on from and begin with, and its place in the request."""

    ids: Sequence[int]
    place: str
    opening: Opening = FROM_NOTHING
    echo: str = ""


@attrs.frozen(kw_only=True)
class Asked:
    """What a request asks for; `named` is the model as it names it. Raw prompts are answered in the dialect `PLAIN`."""

    served: Served
    named: str
    options: GenerationOptions
    prompts: Sequence[AskedPrompt]
    priority: int = 0
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

    def usage(self) -> Usage:
        """Return what all choices cost so far; a prompt counts once, however many choices it has."""
        usages = [choice.reading.usage() for choice in self.choices]
        prompts = usages[:: self.options.n]
        return Usage(
            prompt=sum(usage.prompt for usage in prompts),
            completion=sum(usage.completion for usage in usages),
            cached=sum(usage.cached for usage in prompts),
        )


def check_headers(call: Call) -> int:
    """Refuse headers that cannot be honoured, before the body is read; return the priority."""
    refuse_kv_handle(call.request.headers)
    is_asked(call.request.headers, "X-TL-Return-Seed")
    return read_priority(call.request.headers)


def plan_answer(api: ApiContext, call: Call, asked: Asked, shape: Shape) -> Plan:
    """Return the plan, and note in the call what it says of itself; raises ClientError for what does not fit."""
    info = asked.served.backend.info()
    call.notes.update(model=asked.served.model_id, prompt_tokens=sum(len(prompt.ids) for prompt in asked.prompts))
    _check_count(asked, info)
    seed = api.draw_seed() if asked.options.seed is None else asked.options.seed
    choices = [
        _choice(call, asked, prompt, number, seed, max_tokens)
        for prompt, max_tokens in [(prompt, _budget(asked, prompt, info, shape)) for prompt in asked.prompts]
        for number in range(asked.options.n)
    ]
    call.reserve_tokens(call.notes["prompt_tokens"] + len(choices) * (asked.options.max_tokens or 0))
    if is_asked(call.request.headers, "X-TL-Return-Seed"):
        call.extra_headers.append(("X-TL-Seed", str(seed)))
    return Plan(
        served=asked.served,
        choices=tuple(choices),
        options=asked.options,
        head=_head(api, asked.named, info, shape),
        shape=shape,
    )


def _check_count(asked: Asked, info: BackendInfo) -> None:
    count, most = len(asked.prompts) * asked.options.n, info.admission_limit
    if most is not None and count > most:
        raise ClientError(
            f"the request asks for {count} answers, and at most {most} requests are inside at once; send fewer prompts",
            param="prompt" if len(asked.prompts) > 1 else "n",
        )


def _choice(call: Call, asked: Asked, prompt: AskedPrompt, number: int, seed: int, max_tokens: int) -> Choice:
    served = asked.served
    reader = OutputReader(
        served.tokenizer, asked.options.stop, asked.dialect, opening=prompt.opening, tools=asked.tools
    )
    return Choice(
        request=_request(asked, prompt, number, seed, max_tokens, call.id),
        reading=Reading(reader, len(prompt.ids), call, echo=prompt.echo),
    )


def _budget(asked: Asked, prompt: AskedPrompt, info: BackendInfo, shape: Shape) -> int:
    if not prompt.ids:
        raise ClientError(f"{prompt.place} gives an empty prompt; send some text", param=prompt.place)
    return plan_max_tokens(
        asked.options,
        prompt_tokens=len(prompt.ids),
        context_tokens=info.context_tokens,
        default=shape.default_tokens,
        prompt_field=prompt.place,
    )


def _request(
    asked: Asked, prompt: AskedPrompt, number: int, seed: int, max_tokens: int, request_id: str
) -> GenerationRequest:
    return GenerationRequest(
        prompt=tuple(prompt.ids),
        max_tokens=max_tokens,
        seed=seed_bits(seed),
        choice=number,
        sampling=asked.options.sampling_over(asked.served.default_sampling),
        stop_ids=frozenset() if asked.options.ignore_eos else asked.served.eos_ids,
        logprobs=asked.options.logprobs,
        priority=asked.priority,
        request_id=request_id,
    )


def _head(api: ApiContext, named: str, info: BackendInfo, shape: Shape) -> AnswerHead:
    return AnswerHead(
        id=f"{shape.id_prefix}-{api.new_id()}",
        created=int(api.now_s()),
        model=named,
        system_fingerprint=info.system_fingerprint,
    )
