"""Code with a gap -> prompt ids: prefix and suffix between the tokens that a model has for filling in.

Owns the names of these tokens, the order of the parts, and which of them are kept if there are too many. A client's text spells
none of them. Does not know requests.

Source: `format_prompt_infill` of llama.cpp's server and `src/llama-vocab.cpp`, which know the tokens by their spelling.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.chat.served_model import Served
from tlserve.errors import Refusal
from tlserve.text.tokenizer import Tokenizer

WINDOW_TOKENS = 2048
"""The most tokens of prefix, prompt and suffix together: 3/4 of prefix, 1/4 of suffix and prompt. llama.cpp: `n_batch`."""

_PREFIX = (
    *(
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<\uff5cfim▁begin\uff5c>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
    ),
    "<|prefix|>",
)
_SUFFIX = (
    *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim▁hole\uff5c>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
    "<|suffix|>",
)
_MIDDLE = (
    *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim▁end\uff5c>", "<MID>", "▁<MID>", "<|code_middle|>"),
    "<|middle|>",
)
_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
_FILE = ("<|file_sep|>",)
_PAD = ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")

_PROJECT = "myproject\n"
_NAME = "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"


@attrs.frozen
class FillTokens:
    """The ids of the tokens around the parts; None: the model has none for that part."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None
    pad: int | None = None

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the tokens that end an answer: what follows them is no longer in the gap."""
        return tuple(token for token in (self.pad, self.repository, self.file) if token is not None)


@attrs.frozen(kw_only=True)
class Gap:
    """The text before and after a gap, the beginning of what fills it, and other files, each with its text and its name."""

    prefix: str
    suffix: str
    prompt: str = ""
    files: tuple[tuple[str, str], ...] = ()

    @property
    def characters(self) -> int:
        """Return the length of all texts."""
        own = len(self.prefix) + len(self.suffix) + len(self.prompt)
        return own + sum(len(text) + len(name) for text, name in self.files)


def fill_tokens(served: Served) -> FillTokens:
    """Return the tokens for filling in; raises Refusal, with the model's name, if one that must be there is missing."""
    special = served.tokenizer.special_tokens
    found = {
        part: _first(special, names) for part, names in (("prefix", _PREFIX), ("suffix", _SUFFIX), ("middle", _MIDDLE))
    }
    prefix, suffix, middle = found.values()
    if prefix is None or suffix is None or middle is None:
        missing = " and ".join(part for part, token in found.items() if token is None)
        raise Refusal(
            f"the model {served.model_id!r} cannot fill in: its vocabulary has no token for {missing}; name another model",
            param="model",
        )
    others = (_first(special, names) for names in (_REPOSITORY, _FILE, _PAD))
    return FillTokens(prefix, suffix, middle, *others)


def _first(special: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((special[name] for name in names if name in special), None)


def encode_gap(
    tokenizer: Tokenizer, marks: FillTokens, gap: Gap, *, window: int, space: int, specials: bool = False
) -> tuple[int, ...]:
    """Return the prompt: the files, BOS if the model needs it, the prefix, the prompt, the suffix.

    Of prefix, prompt and suffix `window` tokens are kept, those around the gap, and of the files the last `space` tokens.
    `specials`: the prompt can spell control tokens.
    """
    prompt = (tokenizer.encode_with_specials if specials else tokenizer.encode)(gap.prompt)
    prefix = _last(tokenizer.encode(gap.prefix), 3 * (window // 4))
    suffix = tokenizer.encode(gap.suffix)[: max(0, window // 4 - 2 - len(prompt))]
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    files = _last(_encode_files(tokenizer, marks, gap.files), space)
    return (*files, *bos, marks.prefix, *prefix, *prompt, marks.suffix, *suffix, marks.middle)


def _encode_files(tokenizer: Tokenizer, marks: FillTokens, files: tuple[tuple[str, str], ...]) -> list[int]:
    """Return the other files, and the head of the file with the gap."""
    ids = [] if marks.repository is None else [marks.repository, *tokenizer.encode(_PROJECT)]
    for text, name in files:
        ids += tokenizer.encode(_SNIPPET) if marks.file is None else [marks.file, *tokenizer.encode(f"{name}\n")]
        ids += tokenizer.encode(text)
    return ids if marks.file is None else [*ids, marks.file, *tokenizer.encode(_NAME)]


def _last(ids: list[int], count: int) -> list[int]:
    return ids[len(ids) - min(count, len(ids)) :]
