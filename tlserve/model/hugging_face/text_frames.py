"""What the post-processor of a tokenizer.json puts around one text and around a pair of texts.

Source: the `tokenizers` package's serialisation of its processors, version 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tlserve.errors import ModelRefused

MAX_FRAME_TOKENS = 64
Ids = tuple[int, ...]


@attrs.frozen(kw_only=True)
class TextFrames:
    """The ids before, between and after texts. `second_type`: the second text's tokens have the second token type."""

    single: tuple[Ids, Ids] = ((), ())
    pair: tuple[Ids, Ids, Ids] = ((), (), ())
    second_type: bool = False


def text_frame(processor: object) -> TextFrames:
    """Return the frames of a post-processor; none for kinds that add no tokens. Raises `ModelRefused`."""
    for part in _parts(processor):
        kind = part.get("type")
        if kind == "TemplateProcessing":
            return _template(part)
        if kind in ("BertProcessing", "RobertaProcessing"):
            begin, end = _named_id(part.get("cls")), _named_id(part.get("sep"))
            between = (end,) if kind == "BertProcessing" else (end, end)
            return TextFrames(
                single=((begin,), (end,)), pair=((begin,), between, (end,)), second_type=kind == "BertProcessing"
            )
    return TextFrames()


def _parts(processor: object, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if isinstance(processor, dict) and depth < 4:
        yield processor
        inner = processor.get("processors")
        for part in inner if isinstance(inner, list) else ():
            yield from _parts(part, depth + 1)


def _template(part: Mapping[str, Any]) -> TextFrames:
    ids = part.get("special_tokens")
    ids = ids if isinstance(ids, dict) else {}
    single, _ = _pieces(part.get("single"), ids, ("A",))
    pair, types = _pieces(part.get("pair"), ids, ("A", "B"))
    return TextFrames(single=(single[0], single[1]), pair=(pair[0], pair[1], pair[2]), second_type=types == [0, 1])


def _pieces(pieces: object, ids: Mapping[str, Any], texts: tuple[str, ...]) -> tuple[list[Ids], list[int]]:
    """Return the ids around `texts`, which must come in order, and the types of these."""
    found: list[Ids] = [()]
    types: list[int] = []
    for piece in pieces if isinstance(pieces, list) else ():
        special = piece.get("SpecialToken") if isinstance(piece, dict) else None
        text = piece.get("Sequence") if isinstance(piece, dict) else None
        if isinstance(special, dict):
            token = ids.get(str(special.get("id")))
            found[-1] += _ids_of(token)
        elif isinstance(text, dict) and len(types) < len(texts) and text.get("id") == texts[len(types)]:
            types.append(1 if text.get("type_id") == 1 else 0)
            found.append(())
        else:
            raise _refusal()
    if len(types) != len(texts) or sum(map(len, found)) > MAX_FRAME_TOKENS:
        raise _refusal()
    return found, types


def _ids_of(token: object) -> Ids:
    ids = token.get("ids") if isinstance(token, dict) else None
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise _refusal()
    return tuple(ids)


def _named_id(pair: object) -> int:
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int or pair[1] < 0:
        raise _refusal()
    return pair[1]


def _refusal() -> ModelRefused:
    return ModelRefused("tokenizer.json: its post_processor is damaged, or not of a form that is served")
