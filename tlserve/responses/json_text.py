"""A client's grammar -> the grammar of the same texts inside a JSON string, where quotes, backslashes and controls are escaped.

Owns the rewriting of each literal and each regular expression of a grammar in Lark; the rules around them stay. What cannot be
rewritten exactly is refused with its place. Does not know tools.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator

import attrs

from tlserve.chat.grammars.lark import quoted
from tlserve.chat.grammars.user_lark import PIECE, checked_lark
from tlserve.errors import Refusal

_SPECIAL = ('"', "\\", *map(chr, range(32)))
_NOT_SPECIAL = r'[^"\\\x00-\x1f]'
_RANGE = re.compile(r'"((?:\\.|[^"\\]))"\s*+\.\.\s*+"((?:\\.|[^"\\]))"')
_IMPORT = re.compile(r"%import\s++(?P<from>common\.)?(?P<name>\w++)(?P<alias>\s*+->\s*+\w++)?")
_UNCHANGED = frozenset(
    {
        *("DIGIT", "HEXDIGIT", "INT", "SIGNED_INT", "DECIMAL", "FLOAT", "SIGNED_FLOAT", "NUMBER", "SIGNED_NUMBER"),
        *("LCASE_LETTER", "UCASE_LETTER", "LETTER", "WORD", "CNAME"),
    }
)
_COMMON = {
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "NEWLINE": r"(\r?\n)+",
    "CR": r"\r",
    "LF": r"\n",
}
_REGEX_PIECE = re.compile(
    r"""(?P<set>\\[dwsDWS])
      | (?P<code>\\x[0-9A-Fa-f]{2}|\\x\{[0-9A-Fa-f]{1,6}\}|\\u[0-9A-Fa-f]{4}|\\u\{[0-9A-Fa-f]{1,6}\})
      | (?P<control>\\[nrtfva])
      | (?P<unknown>\\[0-9A-Za-z])
      | (?P<escaped>\\.)
      | (?P<class>\[\^?+\]?+(?:\\.|[^\]\\\[])*+\])
      | (?P<flags>\(\?[a-zA-Z-]*+[:)])
      | (?P<other>\(\?.)
      | (?P<open>\()
      | (?P<close>\))
      | (?P<dot>\.)
      | (?P<literal>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_ODD_CLASS = re.compile(r"\\[pPxubB]|&&|--|~~")
_SPACES = r"\t\n\x0b\x0c\r "


@functools.cache
def _plain_text() -> str:
    """Return every character that a JSON string has as it is; only patterns with odd classes need it."""
    codes = (*range(32, 0xD800), *range(0xE000, 0xFFFF))
    return "".join(character for character in map(chr, codes) if character not in _SPECIAL)


def json_text_lark(grammar: str, field: str) -> str:
    """Return the grammar, in Lark or GBNF, of the text of a JSON string; raises ClientError for one that is refused."""
    lark, schemas = checked_lark(grammar, field)
    if schemas:
        raise Refusal(
            f"{field} has %json, which is not served inside the input of a tool; write its rules", param=field
        )
    return "".join(_Rewriting(lark, field).pieces())


@attrs.frozen
class _Rewriting:
    lark: str
    field: str

    def pieces(self) -> Iterator[str]:
        at = 0
        while at < len(self.lark):
            if (between := _RANGE.match(self.lark, at)) is not None:
                yield self._regex(f"[{between[1]}-{between[2]}]", "")
                at = between.end()
                continue
            if (imported := _IMPORT.match(self.lark, at)) is not None:
                yield self._import(imported)
                at = imported.end()
                continue
            found = PIECE.match(self.lark, at)
            assert found is not None
            yield self._piece(found)
            at = found.end()

    def _piece(self, found: re.Match[str]) -> str:
        if found.lastgroup == "string":
            return self._string(found[0])
        if found.lastgroup == "regex":
            body, _, flags = found[0][1:].rpartition("/")
            return self._regex(body, flags)
        if found.lastgroup == "options" and found[0].startswith("%regex"):
            raise self._refusal("%regex")
        return found[0]

    def _string(self, text: str) -> str:
        body = text.rstrip("i")
        try:
            said = str(json.loads(body))
        except (ValueError, RecursionError):
            raise self._refusal(text) from None
        escaped = json.dumps(said, ensure_ascii=False)[1:-1]
        if escaped == said:
            return text
        if text.endswith("i"):
            raise self._refusal(text)
        return quoted(escaped)

    def _import(self, found: re.Match[str]) -> str:
        name = found["name"]
        if found["from"] and name in _UNCHANGED:
            return found[0]
        if found["from"] and name in _COMMON and not found["alias"]:
            return f"{name}: {self._regex(_COMMON[name], '')}"
        raise self._refusal(found[0])

    def _regex(self, body: str, flags: str) -> str:
        return f"/{''.join(self._regex_pieces(body, flags))}/{flags.replace('s', '')}"

    def _regex_pieces(self, body: str, flags: str) -> Iterator[str]:
        dotted = ["s" in flags]
        if "x" in flags:
            raise self._refusal(f"/{body}/{flags}")
        for found in _REGEX_PIECE.finditer(body):
            kind, piece = found.lastgroup, found[0]
            if kind == "open":
                dotted.append(dotted[-1])
            elif kind == "close" and len(dotted) > 1:
                dotted.pop()
            elif kind == "flags":
                _note_flags(piece, dotted)
            yield self._regex_piece(kind or "", piece, dotall=dotted[-1])

    def _regex_piece(self, kind: str, piece: str, *, dotall: bool) -> str:
        if kind in ("unknown", "other") or piece == "[" or (kind == "flags" and "x" in piece):
            raise self._refusal(piece)
        if kind in ("set", "class"):
            return self._class(piece if kind == "class" else f"[{piece}]")
        if kind == "dot":
            return self._class(r"[\s\S]" if dotall else r"[^\n]")
        character = {
            "code": lambda: chr(int(piece[2:].strip("{}"), 16)),
            "control": lambda: _CONTROLS[piece[1]],
            "escaped": lambda: piece[1],
            "literal": lambda: piece,
        }.get(kind, lambda: "")()
        return _written(character) if character in _SPECIAL and character else piece

    def _class(self, source: str) -> str:
        """Return a class without what has to be escaped, or the escapes of what it has of that."""
        if _ODD_CLASS.search(source):
            raise self._refusal(source)
        own = re.compile(source.replace(r"\s", _SPACES))
        escapes = [_written(character) for character in _SPECIAL if own.fullmatch(character)]
        if not escapes:
            return source
        plain = [f"[{source}&&{_NOT_SPECIAL}]"] if own.search(_plain_text()) else []
        return "(?:" + "|".join([*plain, *escapes]) + ")"

    def _refusal(self, piece: str) -> Refusal:
        words = f"{self.field}: {piece[:60]} cannot be enforced inside the input of a tool; write it in another way"
        return Refusal(words, param=self.field)


def _written(character: str) -> str:
    """Return the regular expression of a character's escape in JSON."""
    escape = json.dumps(character)[1:-1].replace("\\", "\\\\")
    return f"(?-i:{escape})"


def _note_flags(piece: str, dotted: list[bool]) -> None:
    on, _, off = piece[2:-1].partition("-")
    dotall = True if "s" in on else False if "s" in off else dotted[-1]
    if piece.endswith(":"):
        dotted.append(dotall)
    else:
        dotted[-1] = dotall
