"""What a dialect reads in an answer, in a form that can be compared with what another program reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tlserve.chat.dialect import CallArguments, CallOpened, Channel, ChannelText, Piece

GOLDEN = Path(__file__).parents[2] / "tests/golden"

Answer = tuple[str, str, tuple[tuple[str, Any], ...]]
"""Content, reasoning and calls, without the blanks at both ends of the texts."""


def gathered(pieces: Sequence[Piece]) -> tuple[str, str, list[list[str]]]:
    """Return the content, the reasoning and the calls of an answer."""
    texts = {Channel.CONTENT: "", Channel.REASONING: ""}
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, ChannelText):
            texts[piece.channel] += piece.text
        elif isinstance(piece, CallOpened):
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.text
    return texts[Channel.CONTENT], texts[Channel.REASONING], calls


def plain(answer: tuple[str, str, Sequence[Sequence[str]]]) -> Answer:
    """Return an answer to be compared: the arguments of calls as values."""
    content, reasoning, calls = answer
    return content.strip(), reasoning.strip(), tuple((name, _value(arguments)) for name, arguments in calls)


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments.replace(" ", "")


def count_lines(apply: int, wrong: int) -> Iterator[str]:
    """Yield the lines that say how many of the answers that apply are read in the same way."""
    right = apply - wrong
    yield f"Of {apply} answers that apply, {right} are read in the same way ({100 * right / apply:.1f} %)."
    yield ""


def left_out_lines(left: Mapping[str, int]) -> Iterator[str]:
    """Yield the table of the answers that do not apply: their number by the reason."""
    yield "Answers that do not apply:"
    yield ""
    yield "| answers | why |"
    yield "|---|---|"
    yield from (f"| {count} | {why} |" for why, count in sorted(left.items()))
    yield ""
