"""The id under which a model is served, derived from its path.

Owns only the rule; no file is opened. `.../smol-135m/v3` is `smol-135m`, `succ/` is `succ`, `X.gguf` is `X`.
"""

from __future__ import annotations

import re
from pathlib import PurePath

_VERSION = re.compile(r"v[0-9]+(\.[0-9]+)*+")
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
_NOT_OF_AN_ID = re.compile(r"[^A-Za-z0-9._-]+")
_SAYS_NOTHING = frozenset({"", ".", "..", "model", "ggml-model"})


def served_model_id(model_dir: str, model_id: str = "") -> str:
    """Return `model_id` if it is set, else the id derived from `model_dir`.

    A version folder (`v3`) and a file called `model.gguf` are named by their folder. The number of a shard is dropped, and
    characters that an id cannot have become "-".
    """
    if model_id:
        return model_id
    names = [_part_name(part) for part in reversed(PurePath(model_dir).parts)]
    telling = (name for name in names if name not in _SAYS_NOTHING and not _VERSION.fullmatch(name))
    return next(telling, names[0] if names and names[0] else "model")


def _part_name(part: str) -> str:
    stem = _SHARD.sub("", part[: -len(".gguf")]) if part.lower().endswith(".gguf") else part
    return _NOT_OF_AN_ID.sub("-", stem).strip("-")
