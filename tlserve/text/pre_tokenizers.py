"""The pre-tokenizers by their names in `tokenizer.ggml.pre`: how each cuts text into words before the merges.

Owns the table. A name that is not in the table is refused, because a wrong cut silently gives ids that the model was not
trained on.

Source: the patterns of the models' own tokenizer.json files, as collected in llama.cpp's `llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.errors import ModelRefused

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + _WORDS + r"\p{N}" + _TAIL
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_TEKKEN = _UPPER + "*" + _LOWER + "+|" + _UPPER + "+" + _LOWER + r"*|\p{N}" + _SLASH_TAIL
_GPT4O = f"{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_UPPER}+{_LOWER}*{_CONTRACTIONS}?" + r"|\p{N}{1,3}" + _SLASH_TAIL
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES
)
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_PUNCTUATED = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@attrs.frozen
class PreTokenizer:
    """Patterns that cut one after the other; with `whole_words`, a word that is a token is not merged from parts."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_TABLE: tuple[tuple[PreTokenizer, str], ...] = (
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        PreTokenizer((_GPT2,)),
        "gpt-2 phi-2 mpt olmo jais exaone4 gigachat a.x-4.0 mellum trillion granite-docling jina-es jina-de jina-v2-es "
        "jina-v2-de modern-bert",
    ),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), "default"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    (
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (
        PreTokenizer((_QWEN2,)),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    ),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True), "tekken"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (
        PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ),
    (
        PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")),
        "deepseek-coder",
    ),
    (PreTokenizer((_PUNCTUATED,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_PUNCTUATED, r"\p{N}")), "viking"),
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {name: pre for pre, names in _TABLE for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer called `name`; raises ModelRefused for an unknown name."""
    if name not in PRE_TOKENIZERS:
        raise ModelRefused(f"tokenizer.ggml.pre is {name[:64]!r}, which is not a supported pre-tokenizer")
    return PRE_TOKENIZERS[name]


def library_pre_tokenizer(pre: PreTokenizer) -> Any:
    """Return the library's form: each pattern cuts the parts that the patterns before it left, then bytes become characters."""
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
