"""The reference page of tokenizers: for each name and kind in GGUF metadata, whether the ids are those of llama.cpp.

Counts over the recorded ids of `tests/golden/vocabularies`. A text whose ids differ is wrong unless its name is among OWN, with
the number of such texts and the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tlserve.errors import ModelRefused
from tlserve.text.tokenizer import OVER_CHARACTERS, build_tokenizer

VOCABULARIES = Path(__file__).parents[2] / "tests/golden/vocabularies"

_CASES = "the pattern of the model's tokenizer.json, which tells capitals, small letters and marks apart; llama.cpp approximates"
_HAN = "the pattern of the model's tokenizer.json; llama.cpp does not tell capitals and small letters apart"
_DIGITS = "the pattern of the model's tokenizer.json, also for digits with letters behind them; llama.cpp approximates"
_SPACE = "the pattern of the model's tokenizer.json, in which U+3000 is both a space and a sign"
_BERT = "BERT's own rules for control characters, Hangul and vowel signs"

OWN: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie", "tekken"), (9, _CASES)),
    "granite-embed-multi-97m": (1, _CASES),
    "kimi-k2": (9, _CASES),
    "youtu": (1, _HAN),
    **dict.fromkeys(("cohere2moe", "tiny_aya"), (5, _DIGITS)),
    **dict.fromkeys(("deepseek-coder", "deepseek-llm"), (1, _SPACE)),
    "bert": (3, _BERT),
    "bert, normalizer.lowercase = false": (1, _BERT),
    "bert, normalizer.strip_accents = false": (2, _BERT),
}
"""The texts of each name whose ids are on purpose not those of llama.cpp, and why."""

REFUSED_KINDS = ("hybriddna", "none", "plamo2", "rwkv", "test", "whitespace")
"""The kinds of llama.cpp that are refused by name: no architecture that is served has them."""


@attrs.frozen
class Row:
    """What is known of one name: texts with equal ids, and with other ids; neither where the name is refused."""

    name: str
    equal: int = 0
    different: int = 0
    refused: bool = False

    @property
    def wrong(self) -> int:
        """Return the number of texts with other ids that have no reason."""
        return abs(self.different - OWN.get(self.name, (0, ""))[0])


def pre_rows() -> Iterator[Row]:
    """Yield a row for every name of `tokenizer.ggml.pre`."""
    document = _recorded("pre")
    for name, line in document["names"].items():
        if name not in OVER_CHARACTERS:  # those have a vocabulary of another kind
            yield _row(name, {**document["vocabulary"], "pre": name}, document["texts"], document["ids"][line])
    yield from (row for row, flags in _kind_cases() if "pre" in flags)


def kind_rows() -> Iterator[Row]:
    """Yield a row for every kind of vocabulary and every combination of its flags."""
    yield from (row for row, flags in _kind_cases() if "pre" not in flags)
    for kind in REFUSED_KINDS:
        yield _row(kind, {"model": kind, "tokens": ["a", "b"]}, (), ())


def _kind_cases() -> Iterator[tuple[Row, Mapping[str, Any]]]:
    texts = _recorded("pre")["texts"]
    for kind, recorded in _recorded("kinds").items():
        for case in recorded["cases"]:
            flags = case["flags"]
            changed = [f"{key} = {json.dumps(value)}" for key, value in flags.items()]
            name = flags.get("pre") or ", ".join([kind, *changed])
            yield _row(name, {**recorded["vocabulary"], **flags}, texts, case["ids"]), flags


def _recorded(name: str) -> Any:
    return json.loads((VOCABULARIES / f"{name}.json").read_text())


def _row(name: str, values: Mapping[str, Any], texts: Sequence[str], ids: Sequence[str]) -> Row:
    """Compare the tokenizer of `values` with the recorded lines of ids."""
    try:
        tokenizer = build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in values.items()})
    except ModelRefused:
        return Row(name, refused=True)
    pairs = zip(texts, ids, strict=True)
    equal = sum(tokenizer.encode(text) == list(map(int, line.split())) for text, line in pairs)
    return Row(name, equal, len(texts) - equal)


def _table(rows: Sequence[Row]) -> str:
    lines = ["| name | equal | on purpose not equal | wrong |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row.name):
        numbers = "refused by name | | " if row.refused else f"{row.equal} | {row.different or ''} | {row.wrong}"
        lines.append(f"| `{row.name}` | {numbers} |")
    return "\n".join(lines)


def tokenizers_page() -> str:
    """Return the page."""
    pre, kinds = list(pre_rows()), list(kind_rows())
    rows = pre + kinds
    reasons: dict[str, list[str]] = {}
    for name, (_, reason) in OWN.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    explained = "\n".join(f"- {', '.join(names)}: {reason}." for reason, names in reasons.items())
    return _PAGE.format(
        texts=max(row.equal + row.different for row in rows),
        names=len(pre),
        served=sum(not row.refused for row in pre),
        wrong=sum(row.wrong for row in rows),
        pre=_table(pre),
        kinds=_table(kinds),
        explained=explained,
    )


_PAGE = """<!-- made by `python -m docs.make`: do not edit -->

# Tokenizers of GGUF files

A GGUF file has its vocabulary in the metadata `tokenizer.ggml.*`; a tokenizer.json next to it takes precedence. The tables
compare the ids with those that llama.cpp (b11434) gives for {texts} texts: white space, digits, contractions, scripts, marks,
emoji. They include llama.cpp's own test texts. Of {names} names of pre-tokenizers {served} are served; {wrong} texts have wrong
ids.

## Names of `tokenizer.ggml.pre`

A name that llama.cpp does not know is refused, as llama.cpp does. `whitespace`, and the kinds that are refused by name, belong to
architectures that are not served, such as Jina BERT v2, RWKV and PLaMo 2. A file without a name gets `default`, with a warning.

{pre}

## Kinds of `tokenizer.ggml.model`

{kinds}

## Not equal on purpose

Where llama.cpp approximates the tokenizer that a model was trained with, the ids are those of the model's own tokenizer:

{explained}
"""
