"""From the decoded body of a request to its conversation, one reader for each API.

Owns where each API keeps its messages, calls, results and tools. More lenient than the served API: what a turn does not compare
is not checked. Raises `ClientError` where a conversation cannot be told.

Sources: the public references of chat completions, completions, embeddings, Responses, Messages, and of Ollama's API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tlserve.errors import ClientError
from tlserve.mock.conversation import CanonicalConversation, CanonicalMessage, PastCall, Speaker, canonical

Body = Mapping[str, Any]

_ROLES = {
    "system": Speaker.SYSTEM,
    "developer": Speaker.SYSTEM,
    "user": Speaker.USER,
    "assistant": Speaker.ASSISTANT,
    "tool": Speaker.TOOL,
    "function": Speaker.TOOL,
}


def read_chat(body: Body) -> CanonicalConversation:
    """Return the conversation of a chat completion, or of Ollama's `/api/chat`."""
    return _conversation(body, (_chat_message(item, place) for place, item in _objects(body, "messages")))


def read_completion(body: Body) -> CanonicalConversation:
    """Return a prompt as the one message of the user: of completions, or with `system` of Ollama's `/api/generate`."""
    prompt = body.get("prompt", "")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise ClientError("prompt must be one text here; the mock has no tokenizer", param="prompt")
    return _conversation(body, (*_system(body.get("system")), CanonicalMessage(Speaker.USER, prompt)))


def read_embedding(body: Body) -> CanonicalConversation:
    """Return the inputs of an embedding, one a line, as the one message of the user."""
    given = body.get("input", body.get("prompt", ""))
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts):
        raise ClientError("input must be text or a list of texts here; the mock has no tokenizer", param="input")
    return _conversation(body, (CanonicalMessage(Speaker.USER, "\n".join(texts)),))


def read_messages(body: Body) -> CanonicalConversation:
    """Return the conversation of the Messages API; the results in a message of the user are messages of their own."""
    messages = [part for place, item in _objects(body, "messages") for part in _parts_of_message(item, place)]
    return _conversation(body, (*_system(body.get("system")), *messages))


def read_responses(body: Body) -> CanonicalConversation:
    """Return the conversation of the Responses API, as far as the request itself holds it."""
    given = body.get("input", "")
    if isinstance(given, str):
        items = [CanonicalMessage(Speaker.USER, given)]
    else:
        items = [part for place, item in _objects(body, "input") for part in _item(item, place)]
    return _conversation(body, (*_system(body.get("instructions")), *items))


READERS: Mapping[str, Callable[[Body], CanonicalConversation]] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/embeddings": read_embedding,
    "/v1/messages": read_messages,
    "/v1/responses": read_responses,
    "/api/chat": read_chat,
    "/api/generate": read_completion,
    "/api/embed": read_embedding,
    "/api/embeddings": read_embedding,
}
"""The reader of each path."""


def _conversation(
    body: Body, messages: Iterator[CanonicalMessage] | tuple[CanonicalMessage, ...]
) -> CanonicalConversation:
    model = body.get("model", "")
    if not isinstance(model, str):
        raise ClientError("model must be a text", param="model")
    return CanonicalConversation(model=model, messages=canonical(messages), tools=tuple(_tool_names(body)))


def _tool_names(body: Body) -> Iterator[str]:
    """Yield the names of tools: in `function` in chat, at the top elsewhere; a tool of the provider has its type."""
    for _, tool in _objects(body, "tools", needed=False):
        function = tool.get("function")
        named = function if isinstance(function, dict) else tool
        yield str(named.get("name", tool.get("type", "")))


def _objects(body: Body, field: str, *, needed: bool = True) -> Iterator[tuple[str, Body]]:
    items = body.get(field)
    if items is None and not needed:
        return
    if not isinstance(items, list):
        raise ClientError(f"{field} must be a list", param=field)
    for index, item in enumerate(items):
        place = f"{field}.{index}"
        if not isinstance(item, dict):
            raise ClientError(f"{place} must be an object", param=place)
        yield place, item


def _role(item: Body, place: str) -> Speaker:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ClientError(f"{place}.role must be one of {', '.join(_ROLES)}", param=f"{place}.role")
    return _ROLES[role]


def _text(content: object, place: str) -> str:
    """Return the text of a content: itself, or that of its parts; parts without text count for nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ClientError(f"{place} must be a text or a list of parts", param=place)
    texts = (part.get("text", part.get("refusal")) for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _arguments(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _system(content: object) -> tuple[CanonicalMessage, ...]:
    return (CanonicalMessage(Speaker.SYSTEM, _text(content, "system")),) if content else ()


def _chat_message(item: Body, place: str) -> CanonicalMessage:
    role = _role(item, place)
    calls = []
    for _, call in _objects(item, "tool_calls", needed=False):
        function = call.get("function")
        if isinstance(function, dict):
            calls.append(_past_call(call.get("id"), function.get("name"), function.get("arguments", {})))
    tool = item.get("tool_call_id") or item.get("tool_name") or item.get("name") or ""
    text = _text(item.get("content"), f"{place}.content")
    return CanonicalMessage(role, text, tuple(calls), str(tool) if role is Speaker.TOOL else "")


def _past_call(call_id: object, name: object, arguments: object) -> PastCall:
    return PastCall(str(call_id or ""), str(name or ""), _arguments(arguments))


def _parts_of_message(item: Body, place: str) -> Iterator[CanonicalMessage]:
    role = _role(item, place)
    content = item.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    for block in blocks:
        if block.get("type") == "tool_result":
            text = _text(block.get("content"), f"{place}.content")
            yield CanonicalMessage(Speaker.TOOL, text, (), str(block.get("tool_use_id", "")))
    uses = (block for block in blocks if block.get("type") == "tool_use")
    calls = tuple(_past_call(use.get("id"), use.get("name"), use.get("input", {})) for use in uses)
    text = _text(content, f"{place}.content")
    only_results = bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)
    if not only_results:
        yield CanonicalMessage(role, text, calls)


def _item(item: Body, place: str) -> Iterator[CanonicalMessage]:
    kind = item.get("type", "message")
    if kind == "message":
        yield CanonicalMessage(_role(item, place), _text(item.get("content"), f"{place}.content"))
    elif kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments", item.get("input", ""))
        yield CanonicalMessage(Speaker.ASSISTANT, "", (_past_call(item.get("call_id"), item.get("name"), arguments),))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        text = _text(item.get("output"), f"{place}.output")
        yield CanonicalMessage(Speaker.TOOL, text, (), str(item.get("call_id", "")))
