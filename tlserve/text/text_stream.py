"""Bytes of tokens -> text that may be sent: the detokenizer and the stop strings as one.

Owns only their composition; `tlserve.text.detokenizer` and `tlserve.text.stop_strings` own the two halves.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.text.detokenizer import Detokenizer
from tlserve.text.stop_strings import StopStrings


class TextStream:
    """The text of one answer: whatever the cuts, the joined pieces are the text before the first stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raise ClientError for stop strings that are refused."""
        self._detokenizer = Detokenizer()
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Say whether a stop string was met; nothing more comes then."""
        return self._stops.stopped

    def feed(self, data: bytes) -> str:
        """Return the text that `data` makes safe to send."""
        return self._stops.feed(self._detokenizer.feed(data))

    def finish(self) -> str:
        """Return what was held back for an incomplete character or a possible stop string."""
        return self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
