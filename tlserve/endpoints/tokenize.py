"""POST /v1/tokenize: text -> token ids, as ordinary text; BOS in front where the model wants one and it is asked for."""

from __future__ import annotations

from tlserve.endpoints.call import Call
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.served import Served
from tlserve.openai.documents import tokenize_document
from tlserve.openai.requests import TokenizeRequest, parse_tokenize
from tlserve.text.tokenizer import with_bos


async def tokenize(api: ApiContext, call: Call) -> None:
    """Answer with the ids and their count."""
    body, rules = await api.read_body(call)
    request, document = await api.offload.run(len(body), lambda: _tokenize(api, parse_tokenize(body, rules)))
    call.ignored = request.ignored
    await call.send(document)


def _tokenize(api: ApiContext, request: TokenizeRequest) -> tuple[TokenizeRequest, bytes]:
    served: Served = api.catalogue.pick(request.model)
    ids = served.tokenizer.encode(request.text)
    return request, tokenize_document(with_bos(served.tokenizer, ids) if request.add_special_tokens else ids)
