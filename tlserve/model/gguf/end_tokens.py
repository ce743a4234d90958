"""The tokens of a GGUF file that end an answer: those that its metadata name, and those known by their spelling.

Owns the spellings. Many files name only one end token although the model also writes others. Source: llama.cpp's
`src/llama-vocab.cpp`, whose list of end-of-generation tokens this equals.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tlserve.errors import ModelRefused

_log = logging.getLogger("tlserve.model")

END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""The end of a text and, in families that have them, the end of a turn and of a message."""

FILL_IN_KEYS = tuple(f"tokenizer.ggml.fim_{name}_token_id" for name in ("pad", "rep", "sep"))
"""The tokens around the parts of a text to be filled in; an answer that comes to one of them is over."""

FILL_IN_SPELLINGS: Sequence[frozenset[str]] = (
    frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    frozenset({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}),
    frozenset({"<|file_sep|>"}),
)
"""The spellings of each of FILL_IN_KEYS, for files that do not name its token."""

END_SPELLINGS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[e~[",
    }
)

ORDINARY: Sequence[tuple[str, frozenset[str]]] = (
    ("<|end|>", frozenset({"<|return|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|return|>", "<|calls|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|calls|>"})),
    ("</s>", frozenset({"<|tool_response>"})),
    ("</s>", frozenset({"<|plamo:eos|>"})),
)
"""A spelling that does not end an answer if the file has all the others as end tokens: there it is part of an answer."""


def end_tokens(metadata: Mapping[str, object], vocabulary: int) -> frozenset[int]:
    """Return the ids of the end tokens; raises `ModelRefused` for what is not an id."""
    spelled = _ids_by_spelling(metadata)
    found = {spelled[spelling] for spelling in END_SPELLINGS if spelling in spelled}
    found.update(_named(metadata, END_KEYS, vocabulary))
    for key, spellings in zip(FILL_IN_KEYS, FILL_IN_SPELLINGS, strict=True):
        named = _named(metadata, (key,), vocabulary)
        found.update(named or sorted(spelled[spelling] for spelling in spellings if spelling in spelled)[:1])
    for spelling, others in ORDINARY:
        if all(spelled.get(other) in found for other in others):
            found.discard(spelled.get(spelling, -1))
    return frozenset(token for token in found if token < vocabulary)


def named_token(metadata: Mapping[str, object], key: str, vocabulary: int) -> int | None:
    """Return the token id under `key`, None where there is none or one outside the vocabulary; refuses what is not a number."""
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < vocabulary:
        _log.warning("%s is %d, not an id below %d: ignored", key, value, vocabulary)
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelRefused(f"{key} must be an id below {vocabulary}, not {value!r:.40}")
    return value


def _named(metadata: Mapping[str, object], keys: Sequence[str], vocabulary: int) -> set[int]:
    tokens = (named_token(metadata, key, vocabulary) for key in keys)
    return {token for token in tokens if token is not None}


def _ids_by_spelling(metadata: Mapping[str, object]) -> Mapping[str, int]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence) or isinstance(tokens, str | bytes):
        return {}
    wanted = END_SPELLINGS.union(*FILL_IN_SPELLINGS, ("<|plamo:eos|>",))
    return {text: number for number, text in enumerate(tokens) if isinstance(text, str) and text in wanted}
