"""The table of replacements that a SentencePiece vocabulary brings along: the longest key at each place of a text is replaced.

The table is a double array, in which the keys are bytes of UTF-8, and the strings that replace them. A damaged table replaces
less than it should, and breaks nothing.

Source: SentencePiece's `normalizer.cc`, and `llm_tokenizer_ugm_session::normalize_prefix` of llama.cpp's `llama-vocab.cpp`.
"""

from __future__ import annotations

from array import array

from tlserve.errors import ModelRefused

MOST_BYTES = 1 << 20
MOST_REPLACEMENT = 256
"""The bytes that a replacement can have; the longest one in the tables of SentencePiece has 33."""

_KEY = "tokenizer.ggml.precompiled_charsmap"


class Charsmap:
    """The replacements of one table; raises ModelRefused for one that is too large or whose sizes are wrong."""

    def __init__(self, table: bytes) -> None:
        if len(table) > MOST_BYTES:
            raise ModelRefused(f"{_KEY} has more than {MOST_BYTES} bytes")
        strings = 4 + int.from_bytes(table[:4], "little")
        if strings >= len(table) or table[-1] or strings % 4 or strings < 8:
            raise ModelRefused(f"{_KEY} is damaged: its strings are not within its bytes")
        if max(map(len, table[strings:].split(b"\0"))) > MOST_REPLACEMENT:
            raise ModelRefused(f"{_KEY} makes more than {MOST_REPLACEMENT} bytes of a character")
        self._units = array("L" if array("L").itemsize == 4 else "I", table[4:strings])
        self._strings = table[strings:]
        self._characters: dict[str, tuple[str, int]] = {}

    def replaced(self, text: str) -> str:
        """Return `text` with its replacements, in time in proportion to its length."""
        out: list[str] = []
        known, at, end = self._characters, 0, len(text)
        while at < end:
            character = text[at]
            one, node = known.get(character) or self._learn(character)
            at += 1
            if node >= 0 and at < end and self._child(node, text[at].encode()[0]) >= 0:
                one, at = self._longest(text, at - 1, one)
            out.append(one)
        return "".join(out)

    def _learn(self, character: str) -> tuple[str, int]:
        """Return what replaces one character alone, and the node for longer keys that begin with it, -1 for none."""
        node, found = self._walk(self._base(0), character.encode())
        learned = self._characters[character] = (character if found is None else found, node)
        return learned

    def _longest(self, text: str, start: int, one: str) -> tuple[str, int]:
        """Return what replaces the longest key at `start`, and where it ends; `one` replaces the first character alone."""
        best, best_end = one, start + 1
        node, at = self._base(0), start
        while at < len(text) and node >= 0:
            node, found = self._walk(node, text[at].encode())
            at += 1
            if found is not None:
                best, best_end = found, at
        return best, best_end

    def _walk(self, node: int, key: bytes) -> tuple[int, str | None]:
        """Go on from `node` by the bytes of one character: return the node, -1 for none, and what replaces the key so far."""
        leaf = -1
        for byte in key:
            child = self._child(node, byte)
            if child < 0:
                return -1, None
            unit = self._units[child]
            node = child ^ self._base(child)
            leaf = node if unit >> 8 & 1 else -1
        return node, self._string(leaf) if leaf >= 0 else None

    def _base(self, node: int) -> int:
        unit = self._units[node]
        return unit >> 10 << ((unit & 1 << 9) >> 6)

    def _child(self, node: int, byte: int) -> int:
        """Return the child of `node` by `byte`, -1 for none."""
        child = node ^ byte
        return child if child < len(self._units) and self._units[child] & 0x800000FF == byte else -1

    def _string(self, leaf: int) -> str | None:
        """Return the string that a leaf points to, None where it points to nothing."""
        place = self._units[leaf] & 0x7FFFFFFF if leaf < len(self._units) else len(self._strings)
        if place >= len(self._strings):
            return None
        return self._strings[place : self._strings.index(b"\0", place)].decode("utf-8", "replace")
