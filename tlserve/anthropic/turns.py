"""Messages with content blocks -> turns of a conversation.

Owns how blocks become turns: the results of calls are turns of their own, and come before the text of their message. Does not
know the other fields of a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tlserve.anthropic.blocks import (
    Block,
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    joined_text,
    refuse,
)
from tlserve.chat.messages import Role, Turn, TurnCall
from tlserve.errors import ClientError


def read_messages(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return the turns; raises ClientError that names the message and the block, Refusal for one that is not served."""
    if not messages:
        raise ClientError("messages is empty; send at least one message", param="messages")
    return tuple(turn for index, message in enumerate(messages) for turn in _turns(message, f"messages.{index}"))


def _turns(message: Message, place: str) -> Iterator[Turn]:
    role = Role(message.role)
    if isinstance(message.content, str):
        yield Turn(role, message.content)
    elif role is Role.SYSTEM:
        yield Turn(role, joined_text(message.content, f"{place}.content"))
    elif role is Role.USER:
        yield from _user_turns(message.content, f"{place}.content")
    else:
        yield _assistant_turn(message.content, f"{place}.content")


def _user_turns(blocks: Sequence[Block], place: str) -> Iterator[Turn]:
    """Yield a turn for each result of a call, and one for the text."""
    texts: list[str] = []
    for index, block in enumerate(blocks):
        here = f"{place}.{index}"
        if isinstance(block, ToolResultBlock):
            if texts:
                raise ClientError(f"{here} is a tool_result behind text; send the results first", param=here)
            text = joined_text(block.content, f"{here}.content")
            yield Turn(Role.TOOL, text, tool_call_id=block.tool_use_id)
        elif isinstance(block, TextBlock):
            texts.append(block.text)
        else:
            raise refuse(block, here)
    if texts:
        yield Turn(Role.USER, "".join(texts))


def _assistant_turn(blocks: Sequence[Block], place: str) -> Turn:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[TurnCall] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            calls.append(TurnCall(block.id, block.name, block.input))
        elif not isinstance(block, RedactedThinkingBlock):
            raise refuse(block, f"{place}.{index}")
    reasoning = "".join(thoughts) if thoughts else None
    return Turn(Role.ASSISTANT, "".join(texts), reasoning=reasoning, calls=tuple(calls))


def names_without_effect(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the names of what no turn can hold: thinking of another server, citations, and that a result is an error."""
    blocks = [block for message in messages if not isinstance(message.content, str) for block in message.content]
    redacted = any(isinstance(block, RedactedThinkingBlock) for block in blocks)
    errors = any(isinstance(block, ToolResultBlock) and block.is_error for block in blocks)
    citations = any(isinstance(block, TextBlock) and block.citations for block in blocks)
    names = (
        ("messages[].content[].data", redacted),
        ("messages[].content[].is_error", errors),
        ("messages[].content[].citations", citations),
    )
    return tuple(name for name, has_some in names if has_some)
