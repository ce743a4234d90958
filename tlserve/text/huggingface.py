"""The text of a tokenizer.json -> a tokenizer.

Removes parts before the library reads it: the special tokens (`tlserve.text.special_tokens` finds them), truncation and padding.
Also owns how its decoder spells bytes.

Source: the `tokenizers` package's serialisation, version 1.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tlserve.errors import ModelRefused
from tlserve.text.byte_alphabets import SPACE, byte_level_bytes, byte_value, sentencepiece_bytes
from tlserve.text.library_tokenizer import LibraryTokenizer, TextFrame, build_in_library
from tlserve.text.normalizer_limits import check_growth
from tlserve.text.tokenizer import HUGGINGFACE, Tokenizer
from tlserve.text.vocabulary import MAX_TOKENS, is_steering, read_flag, read_token_id

MAX_JSON_CHARS = 1 << 26
MAX_DEPTH = 8
HUGGINGFACE_PREFIX = "tokenizer.huggingface."


def build(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer; the ids of BOS and EOS come from `tokenizer.ggml.*`. Raises ModelRefused.

    `tokenizer.huggingface.vocabulary_size` is the number of the model's ids, if that is more than the tokenizer names.
    """
    document = _read(metadata[HUGGINGFACE])
    added = list(map(_added_token, _members(document, "added_tokens")))
    spell = _spelling(document)
    check_growth(HUGGINGFACE, _parts(document.get("normalizer")))
    special = {token["content"]: token["id"] for token in added if token["special"] or is_steering(token["content"])}
    whole = build_in_library(HUGGINGFACE, lambda: _library(document, added))
    text_tokens = [token for token in added if token["content"] not in special]
    plain = build_in_library(HUGGINGFACE, lambda: _library(document, text_tokens))
    _check_added(plain.get_vocab(), text_tokens)
    inner = _without_beginning(document)
    return LibraryTokenizer(
        plain,
        pieces=_pieces(whole.get_vocab(), added, spell, _rows(metadata)),
        special=special,
        hidden=frozenset(token["id"] for token in added if token["special"]),
        frame=_frame(metadata, whole),
        trims={token["id"]: str.lstrip for token in added if token["rstrip"]},
        trims_before=frozenset(token["id"] for token in added if token["lstrip"]),
        inner=inner and build_in_library(HUGGINGFACE, lambda: _library(inner, text_tokens)),
        unknown=_unknown(document["model"]),
    )


def _read(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > MAX_JSON_CHARS:
        raise ModelRefused(f"{HUGGINGFACE} is not a string of at most {MAX_JSON_CHARS} characters")
    document = build_in_library(HUGGINGFACE, lambda: json.loads(text))
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise ModelRefused(f"{HUGGINGFACE} has no model")
    return document


def _members(document: Mapping[str, Any], key: str) -> list[Any]:
    members = document.get(key) or []
    if not isinstance(members, list) or len(members) > MAX_TOKENS:
        raise ModelRefused(f"{HUGGINGFACE}: {key} is not a list of at most {MAX_TOKENS} entries")
    return members


def _added_token(token: Any) -> dict[str, Any]:
    if not isinstance(token, dict):
        raise ModelRefused(f"{HUGGINGFACE}: an added token is not an object")
    content, number = token.get("content"), token.get("id")
    if not isinstance(content, str) or not content or type(number) is not int or not 0 <= number < MAX_TOKENS:
        raise ModelRefused(f"{HUGGINGFACE}: an added token has no content or no id")
    if token.get("single_word") or (token.get("lstrip") and not token.get("special")):
        raise ModelRefused(
            f"{HUGGINGFACE}: the added token {content[:64]!r} is single_word, or lstrip and no control token, "
            "which is not supported"
        )
    flags = {flag: bool(token.get(flag)) for flag in ("special", "lstrip", "rstrip", "normalized")}
    return {"content": content, "id": number, "single_word": False, **flags}


def _library(document: Mapping[str, Any], added: list[dict[str, Any]]) -> Any:
    from tokenizers import Tokenizer as Library

    changed = {**document, "added_tokens": added, "truncation": None, "padding": None}
    return Library.from_str(json.dumps(changed))


def _without_beginning(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the document for text that does not begin a prompt, or None if it makes no difference.

    With `prepend_scheme` "first" the library puts a space before the beginning. It gets the parts between special tokens
    separately, so each part would get a space.
    """
    cuts = [part for part in _parts(document.get("pre_tokenizer")) if part.get("prepend_scheme") == "first"]
    if not cuts:
        return None
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for part in _parts(changed["pre_tokenizer"]):
        if part.get("prepend_scheme") == "first" and isinstance(part, dict):
            part["prepend_scheme"] = "never"
    return changed


def _parts(node: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield `node` and, if it is a Sequence, its parts; raises ModelRefused if they are nested too deeply."""
    if depth > MAX_DEPTH:
        raise ModelRefused(f"{HUGGINGFACE}: its parts are nested more than {MAX_DEPTH} levels deep")
    if isinstance(node, dict):
        yield node
        for key in ("decoders", "pretokenizers", "normalizers"):
            parts = node.get(key)
            for part in parts if isinstance(parts, list) else ():
                yield from _parts(part, depth + 1)


def _spelling(document: Mapping[str, Any]) -> Callable[[str], bytes]:
    parts = [part for key in ("decoder", "pre_tokenizer") for part in _parts(document.get(key))]
    types = {str(part.get("type")) for part in parts}
    if "ByteLevel" in types:
        return byte_level_bytes
    if "Metaspace" in types or any(part.get("pattern") == {"String": SPACE} for part in parts):
        return _sentencepiece
    if "WordPiece" in types:
        return _word_piece
    raise ModelRefused(f"{HUGGINGFACE}: its decoder is not supported ({', '.join(sorted(types)) or 'none'})")


def _sentencepiece(token: str) -> bytes:
    byte = byte_value(token)
    return sentencepiece_bytes(token) if byte is None else bytes((byte,))


def _word_piece(token: str) -> bytes:
    return token[2:].encode() if token.startswith("##") else (" " + token).encode()


def _unknown(model: Mapping[str, Any]) -> int | None:
    """Return the id that WordPiece gives to words that it cannot spell; None for other models."""
    if model.get("type") != "WordPiece":
        return None
    unknown = model.get("unk_token")
    vocabulary = model.get("vocab")
    found = vocabulary.get(unknown) if isinstance(vocabulary, dict) and isinstance(unknown, str) else None
    if type(found) is not int:
        raise ModelRefused(
            f"{HUGGINGFACE}: the vocabulary does not have the token {str(unknown)[:64]!r} for unknown words"
        )
    return found


def _rows(metadata: Mapping[str, object]) -> int:
    """Return the number of the model's ids, which may be more than the tokenizer names; 0 if it is not given."""
    rows = metadata.get(f"{HUGGINGFACE_PREFIX}vocabulary_size", 0)
    if type(rows) is not int or not 0 <= rows <= MAX_TOKENS:
        raise ModelRefused(
            f"{HUGGINGFACE_PREFIX}vocabulary_size is {str(rows)[:32]}, not a count of at most {MAX_TOKENS}"
        )
    return rows


def _pieces(
    vocabulary: Mapping[str, int], added: list[dict[str, Any]], spell: Callable[[str], bytes], rows: int
) -> list[bytes]:
    """Return the bytes of every id, for at least `rows` ids; an id without a token is a hole."""
    size = max(rows, 1 + max(vocabulary.values(), default=-1))
    if not 0 < size <= MAX_TOKENS:
        raise ModelRefused(f"{HUGGINGFACE}: its vocabulary has no tokens, or more than {MAX_TOKENS} ids")
    _check_added(vocabulary, added)
    pieces = [b""] * size
    for spelling, i in vocabulary.items():
        pieces[i] = spell(spelling)
    for token in added:
        pieces[token["id"]] = token["content"].encode()
    return pieces


def _check_added(vocabulary: Mapping[str, int], added: list[dict[str, Any]]) -> None:
    """Refuse added tokens whose number in the library is not the one they claim."""
    for token in added:
        if vocabulary.get(token["content"]) != token["id"]:
            raise ModelRefused(
                f"{HUGGINGFACE}: the added token {token['content'][:64]!r} does not have the id that it claims"
            )


def _frame(metadata: Mapping[str, object], whole: Any) -> TextFrame:
    size = 1 + max(whole.get_vocab().values(), default=-1)
    bos_id = read_token_id(metadata, "bos_token_id", size)
    framed = build_in_library(HUGGINGFACE, lambda: whole.encode("")).ids
    by_template = bos_id is not None and framed[:1] == [bos_id]
    add_bos = read_flag(metadata, "add_bos_token", default=by_template)
    eos_id = read_token_id(metadata, "eos_token_id", size)
    return TextFrame(
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=add_bos and bos_id is not None,
        add_eos=eos_id is not None and framed[by_template:][-1:] == [eos_id],
    )
