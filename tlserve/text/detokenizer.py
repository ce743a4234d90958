"""Bytes of tokens -> text, as it becomes valid.

Owns incremental UTF-8. Refuses to know tokens: it is fed bytes. What it gives does not depend on how the bytes were cut: an
invalid sequence becomes U+FFFD once for each maximal subpart, and so does a tail that the end cut off.

Source: the WHATWG Encoding standard's UTF-8 decoder, which Python's "replace" rule follows.
"""

from __future__ import annotations

import codecs

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """An incremental decoder: the longest valid prefix is released, an incomplete tail waits."""

    def __init__(self) -> None:
        self._decoder = _Utf8Decoder("replace")

    def feed(self, data: bytes) -> str:
        """Return the text that `data` completes, possibly none."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what the incomplete tail becomes: nothing, or one U+FFFD."""
        return self._decoder.decode(b"", final=True)
