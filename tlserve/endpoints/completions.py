"""POST /v1/completions: raw text (or token ids), continued.

The prompt is ordinary text: what spells a control token in it does not become one, unless the caller, who writes the whole
prompt here, says so by `X-TL-Special-Tokens: 1`. Token ids are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.chat.prompt import encode_completion
from tlserve.endpoints.answering import answer
from tlserve.endpoints.budget import COMPLETION_TOKENS
from tlserve.endpoints.call import SPECIAL_TOKENS, Call, is_asked
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.planning import Asked, Shape, check_headers, plan_answer
from tlserve.endpoints.served import Served
from tlserve.errors import ClientError
from tlserve.openai.chunks import completion_chunks
from tlserve.openai.documents import completion_document
from tlserve.openai.requests import CompletionRequest, parse_completion

SHAPE = Shape(
    id_prefix="cmpl",
    prompt_field="prompt",
    default_tokens=COMPLETION_TOKENS,
    chunks=completion_chunks,
    document=completion_document,
)


async def completions(api: ApiContext, call: Call) -> None:
    """Answer with the continuation of one prompt."""
    priority = check_headers(call)
    body, rules = await api.read_body(call)
    request = await api.offload.run(len(body), lambda: parse_completion(body, rules))
    call.ignored = request.ignored
    served = api.catalogue.pick(request.model)
    specials = is_asked(call.request.headers, SPECIAL_TOKENS)
    prompt = await api.offload.run(len(body), lambda: encode_prompt(served, request, specials))
    asked = Asked(served=served, named=request.model, options=request.options, prompt=prompt, priority=priority)
    await answer(api, call, plan_answer(api, call, asked, SHAPE))


def encode_prompt(served: Served, request: CompletionRequest, specials: bool) -> Sequence[int]:
    """Return the prompt's ids; raises ClientError for an id that the vocabulary does not have."""
    if isinstance(request.prompt, str):
        return encode_completion(served.tokenizer, request.prompt, specials=specials)
    size = served.backend.info().vocabulary_size
    strange = next((token for token in request.prompt if token >= size), None)
    if strange is not None:
        raise ClientError(f"prompt has the token id {strange}, and the vocabulary has {size}", param="prompt")
    return request.prompt
