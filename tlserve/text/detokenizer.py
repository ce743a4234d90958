"""Bytes of tokens -> valid text, piece by piece.

Owns incremental UTF-8. Knows nothing of tokens: it gets bytes. The result does not depend on how the bytes are cut: an invalid
sequence becomes U+FFFD once for each maximal subpart, and so does an incomplete tail.

Source: the WHATWG Encoding standard's UTF-8 decoder, which Python's "replace" rule follows.
"""

from __future__ import annotations

import codecs

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """An incremental decoder: it returns the longest valid prefix and holds an incomplete tail."""

    def __init__(self) -> None:
        self._decoder = _Utf8Decoder("replace")

    def feed(self, data: bytes) -> str:
        """Return the text that `data` completes, which may be empty."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return the text for the incomplete tail: none, or one U+FFFD."""
        return self._decoder.decode(b"", final=True)
