"""The tokenizer files of a Hugging Face directory -> the metadata that `text` builds a tokenizer from.

Finds tokenizer.json and the ids that begin and end a text: tokenizer_config.json and special_tokens_map.json name them by
their spelling, config.json by number. Does not know how text becomes ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.hugging_face.text_frames import Ids, text_frame
from tlserve.model.sidecar_files import TOKENIZER_CONFIG, parse_json, read_json, read_text

TOKENIZER, SPECIAL_TOKENS = "tokenizer.json", "special_tokens_map.json"
MAX_TOKENIZER_BYTES = 64 << 20
MAX_TOKENIZER_MEMBERS = 6 << 20  # a vocabulary of 2^20 tokens and as many merges have fewer


@attrs.frozen(kw_only=True)
class HfTokenizer:
    """`metadata`: for `text.build_tokenizer`. The ids are None where no file names them."""

    metadata: Mapping[str, object]
    bos_id: int | None
    eos_id: int | None


@attrs.frozen(kw_only=True)
class ReadFrame:
    """The ids that tokenizer.json puts around a text, None where it puts none.

    `second_after`: the id after which the second of two texts begins, if its tokens have the second type.
    """

    begin: int | None = None
    end: int | None = None
    second_after: int | None = None
    pair: tuple[Ids, Ids, Ids] = ((), (), ())


def read_text_frame(directory: Path) -> ReadFrame:
    """Return what the post-processor of tokenizer.json puts around texts."""
    path = directory / TOKENIZER
    if not path.is_file():
        return ReadFrame()
    try:
        document = parse_json(read_text(path, MAX_TOKENIZER_BYTES), MAX_TOKENIZER_MEMBERS)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{TOKENIZER} cannot be read: {str(error)[:200]}") from error
    frame = text_frame(document.get("post_processor") if isinstance(document, dict) else None)
    begins = frame.single[0] or frame.pair[0]
    ends = frame.single[-1] or ()
    after = frame.pair[1]
    return ReadFrame(
        begin=begins[0] if begins else None,
        end=ends[-1] if ends else None,
        second_after=after[-1] if frame.second_type and after else None,
        pair=frame.pair,
    )


def read_tokenizer(
    directory: Path,
    config: Mapping[str, object],
    vocabulary: int,
    *,
    begin: str = "bos",
    end: str = "eos",
    frame: ReadFrame | None = None,
) -> HfTokenizer:
    """Read the tokenizer of `directory`; raises `ModelRefused`. `vocabulary`: rows of the model's embedding.

    `begin`, `end`: what the files call the tokens around a text ("cls" and "sep" in a BERT); those of a `frame` come first.
    """
    if not (directory / TOKENIZER).is_file():
        others = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (directory / name).is_file()]
        also = f"; {others[0]} alone cannot be read: save it with a fast tokenizer of transformers" if others else ""
        raise ModelRefused(f"it has no {TOKENIZER}{also}")
    text = read_text(directory / TOKENIZER, MAX_TOKENIZER_BYTES)
    ids = _ids(text, vocabulary)
    named = {**read_json(directory / SPECIAL_TOKENS), **_not_null(read_json(directory / TOKENIZER_CONFIG))}
    bos, eos = (
        _marked(named, f"{mark}_token", ids, config.get(f"{mark}_token_id"), vocabulary) for mark in (begin, end)
    )
    if frame is not None:
        bos = bos if frame.begin is None or frame.begin >= vocabulary else frame.begin
        eos = eos if frame.end is None or frame.end >= vocabulary else frame.end
    metadata: dict[str, object] = {
        "tokenizer.huggingface.json": text,
        "tokenizer.huggingface.vocabulary_size": vocabulary,
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.ggml.add_bos_token": named.get("add_bos_token"),
    }
    return HfTokenizer(metadata=_not_null(metadata), bos_id=bos, eos_id=eos)


def read_ids(directory: Path, vocabulary: int) -> Mapping[str, int]:
    """Return spelling -> id of every token; raises `ModelRefused`, but not for a missing file."""
    path = directory / TOKENIZER
    return _ids(read_text(path, MAX_TOKENIZER_BYTES), vocabulary) if path.is_file() else {}


def _not_null(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _ids(text: str, vocabulary: int) -> dict[str, int]:
    """Return spelling -> id of every token; refuses ids that the embedding has no row for."""
    try:
        document = parse_json(text, MAX_TOKENIZER_MEMBERS)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{TOKENIZER} cannot be read: {str(error)[:200]}") from error
    ids = _model_ids(document)
    for token in _added(document):
        if isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int:
            ids[token["content"]] = token["id"]
    most = max(ids.values(), default=0)
    if most >= vocabulary:
        raise ModelRefused(f"{TOKENIZER} has ids up to {most}, the embedding only {vocabulary} rows")
    return ids


def _model_ids(document: Any) -> dict[str, int]:
    """Return the ids of the model's own vocabulary: an object, or (unigram) a list of [spelling, score]."""
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        raise ModelRefused(f"{TOKENIZER} has no model")
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        return {str(entry[0]): i for i, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    return {token: i for token, i in vocab.items() if type(i) is int} if isinstance(vocab, dict) else {}


def _added(document: dict[str, Any]) -> list[Any]:
    added = document.get("added_tokens")
    return added if isinstance(added, list) else []


def _marked(
    named: Mapping[str, object], name: str, ids: Mapping[str, int], number: object, vocabulary: int
) -> int | None:
    """Return the id of the token called `name`; where it has no spelling, `number`, or the first of several."""
    spelling = named.get(name)
    spelling = spelling.get("content") if isinstance(spelling, dict) else spelling
    if isinstance(spelling, str) and spelling in ids:
        return ids[spelling]
    number = number[0] if isinstance(number, list) and number else number
    return number if type(number) is int and 0 <= number < vocabulary else None
