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
_JAIS2 = _LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + "".join(
    rf"\s{{{run}}}(?!\S)|" for run in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
)
_SPARK = _DEEPSEEK3.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)" + _WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = _CONTRACTIONS + _WORDS + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES
_EXAONE_MOE = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|"
    r"\s+(?!\S)|\s+"
)
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI = r"[\p{Han}]+|" + _GPT4O.replace(_UPPER, _UPPER[:-1] + _NOT_HAN).replace(_LOWER, _LOWER[:-1] + _NOT_HAN).replace(
    r"[\r\n/]", r"[\r\n]"
)
_HANGUL, _BOPOMOFO = "[\uac00-\ud7a3\u3131-\u318e]+", "[\u3105-\u312f]+"
_CJK_POINTS = "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
_YOUTU = f"{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_UPPER}+{_LOWER}*{_CONTRACTIONS}?" + r"|\p{N}" + _SLASH_TAIL
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
    "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""The letters that deepseek-llm keeps together: those that have case, in the Unicode of its time."""
_DEEPSEEK_POINTS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_CHAMELEON = ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2)
_HAN_TO_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _threes(digit: str, end: str) -> tuple[str, str]:
    """Return cuts of runs of `digit` into threes, counted from the right, where `end` follows the run.

    The one or two digits in front are cut off first, then all that is left is cut. A look ahead from every digit would take
    time in proportion to the square of the run.
    """
    run = rf"(?<!{digit})"
    return rf"{run}{digit}{{1,2}}(?=(?:{digit}{{3}})+{end})|{run}(?:{digit}{{3}})+{end}", rf"{digit}{{3}}"


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
        "jina-v2-de modern-bert jina-v1-en jina-v2-code roberta-bpe",
    ),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), "default"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    (
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer((_LLAMA3,), whole_words=True), "glm4 glm5"),
    (PreTokenizer((r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), whole_words=True), "minicpm5"),
    (PreTokenizer((_JAIS2 + r"\s",)), "jais-2"),
    (
        PreTokenizer((_QWEN2,)),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    ),
    (PreTokenizer((_QWEN2.removeprefix(_CONTRACTIONS + "|"),)), "ufakzeka"),
    (PreTokenizer(("[^\n]+|[\n]+", _QWEN2)), "laguna"),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (PreTokenizer((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_SEED,)), "seed-coder"),
    (PreTokenizer((_EXAONE_MOE,)), "exaone-moe"),
    (PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True), "tekken"),
    (PreTokenizer((_GPT4O,), whole_words=True), "granite-embed-multi-97m"),
    (PreTokenizer((_KIMI,)), "kimi-k2"),
    (PreTokenizer((f"{_HANGUL}|{_CJK_POINTS}|{_BOPOMOFO}|{_HAN_KANA}", _YOUTU), whole_words=True), "youtu"),
    (PreTokenizer((*_threes(r"\d", r"\b"), _GPT4O)), "tiny_aya cohere2moe"),
    (PreTokenizer((r"\p{N}+", *_threes(r"\d", r"(?!\d)"))), "superbpe"),
    (PreTokenizer((r"\p{N}+", *_threes(r"\p{N}", r"(?!\p{N})"), _ASIAN, _DEEPSEEK3)), "afmoe"),
    (PreTokenizer(_CHAMELEON, add_bos=True), "chameleon"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (
        PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ),
    (PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _SPARK, r"\p{N}")), "spark2_5"),
    (PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_TO_HANGUL, r"\p{N}")), "deepseek-coder"),
    (
        PreTokenizer(("[\r\n]", rf"\s?[{_CASED}]+", _DEEPSEEK_POINTS, r"(?<!\s)\s+$", _HAN_TO_HANGUL, r"\p{N}+")),
        "deepseek-llm",
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
