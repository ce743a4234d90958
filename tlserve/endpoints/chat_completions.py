"""POST /v1/chat/completions: the turns of a conversation, continued by the assistant."""

from __future__ import annotations

from tlserve.chat.prompt import Prompt, encode_chat
from tlserve.endpoints.answering import answer
from tlserve.endpoints.call import Call
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.planning import Asked, AskedPrompt, Shape, check_headers, plan_answer
from tlserve.endpoints.served import Served, check_generates
from tlserve.openai.chunks import chat_chunks
from tlserve.openai.documents import chat_document
from tlserve.openai.requests import ChatRequest, parse_chat

SHAPE = Shape(
    id_prefix="chatcmpl",
    default_tokens=None,
    chunks=chat_chunks,
    document=chat_document,
)


async def chat_completions(api: ApiContext, call: Call) -> None:
    """Answer with the assistant's next turn."""
    priority = check_headers(call)
    body, rules = await api.read_body(call)
    request = await api.offload.run(len(body), lambda: parse_chat(body, rules))
    call.ignored = request.ignored
    served = api.catalogue.pick(request.model)
    check_generates(served)
    prompt = await api.offload.run(len(body), lambda: encode_prompt(served, request))
    asked = Asked(
        served=served,
        named=request.model,
        options=request.options,
        prompts=[AskedPrompt(ids=prompt.ids, place="messages", text=prompt.text)],
        priority=priority,
    )
    await answer(api, call, plan_answer(api, call, asked, SHAPE))


def encode_prompt(served: Served, request: ChatRequest) -> Prompt:
    """Render the turns by the model's template and encode them; control tokens come from the template alone."""
    return encode_chat(served.template, served.tokenizer, request.messages)
