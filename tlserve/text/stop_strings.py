"""Text -> text up to the first stop string.

Owns the search. Knows nothing of bytes and tokens. The result does not depend on how the text is cut: the occurrence that is
complete first wins; if several are complete at the same character, the longest wins. Text that may begin a stop string is held:
always the longest suffix that is a proper prefix of one.

Source: Aho and Corasick, "Efficient string matching", 1975: one automaton for all strings; its depth is the length of held text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tlserve.errors import ClientError

MAX_STOPS = 64
MAX_STOP_CHARS = 4096


class StopStrings:
    """Finds the first of a few strings; the time is linear in the text, however it is cut.

    `stopped` says that a stop string was found, and `found` is that string; all later text is dropped. `held` is the number of
    characters that were fed and not released; after a match it includes the dropped characters.
    """

    def __init__(self, stops: Sequence[str] = (), *, include: bool = False) -> None:
        """Raise ClientError for too many strings, or an empty or overlong one; `include` also releases the one that is found."""
        _check(stops)
        self._include = include
        self.stopped = False
        self.found = ""
        self.held = 0
        self._automaton = _Automaton(stops) if stops else None
        self._waiting = ""
        self._state = 0

    def feed(self, text: str, *, stopping: bool = True) -> str:
        """Return the text that can no longer be part of a stop string.

        If `stopping` is false, a stop string that is complete within `text` is ignored; one that begins in it can match later.
        """
        if self._automaton is None:
            return text
        self.held += len(text)
        if self.stopped:
            return ""
        waiting = self._waiting + text
        end, self._state, match_chars = self._automaton.walk(self._state, text, stopping)
        if match_chars:
            self.stopped = True
            stop_end = len(self._waiting) + end
            self.found = waiting[stop_end - match_chars : stop_end]
            return self._release(waiting, stop_end - (0 if self._include else match_chars))
        return self._release(waiting, len(waiting) - self._automaton.depth[self._state])

    def finish(self) -> str:
        """Return the text that was held, because nothing more can complete a stop string."""
        return "" if self.stopped else self._release(self._waiting, len(self._waiting))

    def _release(self, waiting: str, count: int) -> str:
        self._waiting = "" if self.stopped else waiting[count:]
        self.held -= count
        return waiting[:count]


def _check(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise ClientError(f"stop has {len(stops)} strings; send at most {MAX_STOPS}", param="stop")
    if any(not stop for stop in stops):
        raise ClientError("stop has an empty string", param="stop")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise ClientError(f"stop has a string of more than {MAX_STOP_CHARS} characters", param="stop")


class _Automaton:
    """The strings as a tree with failure links. State 0 is the root.

    `depth[s]` is the length of the prefix at state s; `match[s]` is the length of the longest string that ends there, or 0.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.depth = [0]
        self.match = [0]
        self._children: list[dict[str, int]] = [{}]
        self._fail = [0]
        for stop in stops:
            self._add(stop)
        self._link()

    def walk(self, state: int, text: str, stopping: bool) -> tuple[int, int, int]:
        """Read `text` from `state`; return (characters read, state, length of the match that ended it, or 0)."""
        children, match = self._children, self.match
        for read, character in enumerate(text, 1):
            following = children[state].get(character)
            state = self._step(state, character) if following is None else following
            if match[state] and stopping:
                return read, state, match[state]
        return len(text), state, 0

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._children[state]:
            state = self._fail[state]
        return self._children[state].get(character, 0)

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._children[state]:
                self._children[state][character] = len(self._children)
                self._children.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
                self._fail.append(0)
            state = self._children[state][character]
        self.match[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._children[state].items():
                self._fail[child] = self._step(self._fail[state], character)
                self.match[child] = self.match[child] or self.match[self._fail[child]]
                queue.append(child)
