"""A parsed generation request and its prompt -> the plan of its answer.

Owns what chat and completions decide in the same way (the budget, the seed, the stop ids, the ids of the answer) and the
`Shape` that says in what they differ. Refuses to know how an answer is made and sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tlserve.chat.output_reader import Answer, OutputReader
from tlserve.endpoints.budget import plan_max_tokens, seed_bits
from tlserve.endpoints.call import Call, is_asked, read_priority, refuse_kv_handle
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.served import Served
from tlserve.errors import ClientError
from tlserve.generation import BackendInfo, GenerationRequest
from tlserve.openai.chunks import Chunks
from tlserve.openai.documents import AnswerHead, Usage
from tlserve.openai.requests import GenerationOptions


@attrs.frozen(kw_only=True)
class Shape:
    """In what chat and completions differ, once there is a prompt. `default_tokens` None: as many as fit.

    `chunks` takes whether the usage is asked for, `document` whether log-probabilities are.
    """

    id_prefix: str
    prompt_field: str
    default_tokens: int | None
    chunks: Callable[[AnswerHead, bool], Chunks]
    document: Callable[[AnswerHead, Answer, Usage, bool], bytes]


@attrs.frozen(kw_only=True)
class Asked:
    """What a request asks for; `named` is the model as it names it, `prompt` token ids, rendered from `prompt_text`."""

    served: Served
    named: str
    options: GenerationOptions
    prompt: Sequence[int]
    prompt_text: str = ""
    priority: int = 0


@attrs.frozen(kw_only=True)
class Plan:
    """All that is decided about an answer before the backend is asked for it; `reader` is ready for its tokens."""

    served: Served
    request: GenerationRequest
    options: GenerationOptions
    head: AnswerHead
    shape: Shape
    reader: OutputReader


def check_headers(call: Call) -> int:
    """Refuse headers that cannot be honoured, before the body is read; return the priority."""
    refuse_kv_handle(call.request.headers)
    is_asked(call.request.headers, "X-TL-Return-Seed")
    return read_priority(call.request.headers)


def plan_answer(api: ApiContext, call: Call, asked: Asked, shape: Shape) -> Plan:
    """Return the plan, and note in the call what it says of itself; raises ClientError for what does not fit."""
    info = asked.served.backend.info()
    call.notes.update(model=asked.served.model_id, prompt_tokens=len(asked.prompt))
    max_tokens = _budget(asked, info, shape)
    seed = api.draw_seed() if asked.options.seed is None else asked.options.seed
    if is_asked(call.request.headers, "X-TL-Return-Seed"):
        call.extra_headers.append(("X-TL-Seed", str(seed)))
    return Plan(
        served=asked.served,
        request=_request(asked, max_tokens, seed, call.id),
        options=asked.options,
        head=_head(api, asked.named, info, shape),
        shape=shape,
        reader=_reader(asked),
    )


def _reader(asked: Asked) -> OutputReader:
    served = asked.served
    return OutputReader(served.tokenizer, asked.options.stop, served.dialect, prompt=asked.prompt_text)


def _budget(asked: Asked, info: BackendInfo, shape: Shape) -> int:
    if not asked.prompt:
        raise ClientError(f"{shape.prompt_field} gives an empty prompt; send some text", param=shape.prompt_field)
    return plan_max_tokens(
        asked.options,
        prompt_tokens=len(asked.prompt),
        context_tokens=info.context_tokens,
        default=shape.default_tokens,
        prompt_field=shape.prompt_field,
    )


def _request(asked: Asked, max_tokens: int, seed: int, request_id: str) -> GenerationRequest:
    return GenerationRequest(
        prompt=tuple(asked.prompt),
        max_tokens=max_tokens,
        seed=seed_bits(seed),
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
