"""POST /v1/tokenize: text -> token ids, as /v1/completions would read it.

`add_special_tokens` puts BOS in front where the model wants one; `X-TL-Special-Tokens: 1` lets the text spell control tokens.
"""

from __future__ import annotations

from tlserve.chat.prompt import encode_completion
from tlserve.endpoints.call import SPECIAL_TOKENS, Call, is_asked
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.served import Served
from tlserve.openai.documents import tokenize_document
from tlserve.openai.requests import TokenizeRequest, parse_tokenize


async def tokenize(api: ApiContext, call: Call) -> None:
    """Answer with the ids and their count."""
    specials = is_asked(call.request.headers, SPECIAL_TOKENS)
    body, rules = await api.read_body(call)
    request = await api.offload.run(len(body), lambda: parse_tokenize(body, rules))
    call.ignored = request.ignored
    served = api.catalogue.pick(request.model)
    call.notes["model"] = served.model_id
    await call.send(await api.offload.run(len(body), lambda: _tokenize(served, request, specials)))


def _tokenize(served: Served, request: TokenizeRequest, specials: bool) -> bytes:
    if request.add_special_tokens:
        return tokenize_document(encode_completion(served.tokenizer, request.text, specials=specials))
    encode = served.tokenizer.encode_with_specials if specials else served.tokenizer.encode
    return tokenize_document(encode(request.text))
