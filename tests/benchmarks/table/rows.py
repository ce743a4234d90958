"""The rows of the table of performance: what is compared, what is wanted of it, and what came of it.

Owns the rows and the choice of the peer's best format, row by row. Refuses to measure and to print: values in, findings out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import attrs

from tests.benchmarks.table.load_case import LoadCase
from tlserve.bench.comparison import Spread, ratio_of, spread_of

OURS = "tlserve"

CASES = (
    LoadCase(name="c1", streams=1, rounds=6),
    LoadCase(name="c8", streams=8, rounds=3),
    LoadCase(name="c32", streams=32, rounds=2),
    LoadCase(name="shared", streams=8, rounds=4, words=16, shared_words=256),
)
PREFILL, IN_PROCESS, STEP = "prefill", "in_process", "step"
PARTS = (*(case.name for case in CASES), PREFILL, IN_PROCESS, STEP)
"""What can be measured by itself, by name."""

OUT, FIRST = ".out", ".first"

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By what was measured ("c8.out"), then by who ("llama.cpp Q4_0"): one value for each round."""


@attrs.frozen(kw_only=True)
class Row:
    """Ours over the peer's. Times want to be below `wanted`, rates above it. `same_file`: only the format that is ours, too."""

    what: str
    source: str
    wanted: float
    aim: float
    time: bool = False
    same_file: bool = False


ROWS = (
    Row(what="output tokens/s, 1 stream", source="c1.out", wanted=1.3, aim=1.6),
    Row(what="output tokens/s, 8 streams", source="c8.out", wanted=1.7, aim=2.5),
    Row(what="output tokens/s, 32 streams", source="c32.out", wanted=1.7, aim=2.5),
    Row(what="time to first token p50, 8 streams, ms", source="c8.first", wanted=0.6, aim=0.4, time=True),
    Row(what="time to first token p50, 32 streams, ms", source="c32.first", wanted=0.6, aim=0.4, time=True),
    Row(what="output tokens/s, 8 streams, shared prefix", source="shared.out", wanted=2, aim=3),
    Row(what="prefill of 512 tokens, tokens/s", source=PREFILL, wanted=1.3, aim=2.2),
    Row(what="the same file, output tokens/s, 1 stream", source="c1.out", wanted=1.7, aim=3, same_file=True),
    Row(what="the same file, output tokens/s, 8 streams", source="c8.out", wanted=1.7, aim=3, same_file=True),
    Row(what="the same file, output tokens/s, 32 streams", source="c32.out", wanted=1.7, aim=3, same_file=True),
    Row(what="output tokens/s, 32 streams over HTTP, against in process", source=IN_PROCESS, wanted=1.4, aim=2.2),
    Row(what="time per token through HTTP, 1 stream, ms", source=STEP, wanted=1.10, aim=1.05, time=True),
)


@attrs.frozen(kw_only=True)
class Finding:
    """A row that was measured: both sides over the rounds, and the ratio of medians with the ends of the rounds' ratios."""

    row: Row
    peer: str
    ours: Spread
    theirs: Spread
    ratio: Spread

    @property
    def reached(self) -> str:
        """Say how far it came: "aim", "wanted" or "neither"."""
        return next((name for name in ("aim", "wanted") if self._is_within(getattr(self.row, name))), "neither")

    def _is_within(self, bound: float) -> bool:
        return self.ratio.median <= bound if self.row.time else self.ratio.median >= bound


def findings(values: Values, same_file: str) -> list[Finding]:
    """Return the rows for which both sides were measured; `same_file` is the peer that serves the file which ours does."""
    found = (_find(row, values.get(row.source, {}), same_file) for row in ROWS)
    return [finding for finding in found if finding is not None]


def _find(row: Row, by_who: Mapping[str, Sequence[float]], same_file: str) -> Finding | None:
    ours = by_who.get(OURS)
    peers = [who for who in by_who if who != OURS and (who == same_file or not row.same_file)]
    if not ours or not peers:
        return None
    best = (min if row.time else max)(peers, key=lambda who: statistics.median(by_who[who]))
    theirs = by_who[best]
    return Finding(
        row=row,
        peer=best,
        ours=spread_of(ours),
        theirs=spread_of(theirs),
        ratio=ratio_of(list(zip(ours, theirs, strict=True))),
    )
