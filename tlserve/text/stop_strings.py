"""Text -> text up to the first stop string.

Owns the search. Refuses to know bytes and tokens. The rule does not depend on how the text was cut: the occurrence that is
complete first wins, and of those that are complete at the same character the longest. What could still become a stop
string is held back: always the longest suffix that is a proper prefix of one.

Source: Aho and Corasick, "Efficient string matching", 1975: one automaton for all the strings; its depth is what is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tlserve.errors import ClientError

MAX_STOPS = 4
MAX_STOP_CHARS = 4096


class StopStrings:
    """An incremental matcher for at most four strings; time is linear in the text, however it is cut.

    `stopped` says that a stop string was met: from then on all text is dropped. `held` counts the characters that were fed
    and have not been released; after a match, also those that were dropped.
    """

    def __init__(self, stops: Sequence[str] = (), *, include: bool = False) -> None:
        """Raise ClientError for too many, an empty, or an overlong string; `include`: the one that is met is released too."""
        _check(stops)
        self._include = include
        self.stopped = False
        self.held = 0
        self._automaton = _Automaton(stops) if stops else None
        self._waiting = ""
        self._state = 0

    def feed(self, text: str, *, stopping: bool = True) -> str:
        """Return the text that no stop string can contain any more.

        `stopping` false: what is complete within `text` stops nothing; what only begins in it may, later.
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
            return self._release(waiting, len(self._waiting) + end - (0 if self._include else match_chars))
        return self._release(waiting, len(waiting) - self._automaton.depth[self._state])

    def finish(self) -> str:
        """Return what was held back, because nothing more can complete a stop string."""
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

    `depth[s]` is the length of the prefix that state s stands for; `match[s]` that of the longest string ending in it, or 0.
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
