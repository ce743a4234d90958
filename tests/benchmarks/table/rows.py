"""The rows of the table of performance: what is compared, and the result of each comparison.

Owns the rows, and the choice of the peer's best format in each row. Does not measure and does not print.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

import attrs

from tests.benchmarks.table.load_case import LoadCase
from tlserve.bench.comparison import Spread, ratio_of, spread_of

OURS = "tlserve"

CASES = (
    LoadCase(name="c1", streams=1, rounds=6),
    LoadCase(name="c8", streams=8, rounds=3),
    LoadCase(name="c32", streams=32, rounds=2),
    LoadCase(name="c64", streams=64, rounds=2),
    LoadCase(name="shared", streams=8, rounds=4, words=16, shared_words=256),
    LoadCase(name="long", streams=1, rounds=1, words=4000),
)
PREFILL, IN_PROCESS, STEP = "prefill", "in_process", "step"
PARTS = (*(case.name for case in CASES), PREFILL, IN_PROCESS, STEP)
"""The names of the parts that can be measured alone."""

PREFILL_TOKENS = (512, 4096)
IN_PROCESS_CASES = ("c32", "c64")

OUT, FIRST, EACH = ".out", ".first", ".each"

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""One value for each round, by what was measured ("c8.out"), then by whose it is ("llama.cpp Q4_0")."""


@attrs.frozen(kw_only=True)
class TableRow:
    """A value of tlserve over the peer's. `time`: lower is better. `same_file`: only the peer's format of tlserve's own file."""

    what: str
    source: str
    time: bool = False
    same_file: bool = False


ROWS = (
    TableRow(what="output tokens/s, 1 stream", source="c1.out"),
    TableRow(what="output tokens/s, 8 streams", source="c8.out"),
    TableRow(what="output tokens/s, 32 streams", source="c32.out"),
    TableRow(what="output tokens/s, 64 streams", source="c64.out"),
    TableRow(what="time to first token p50, 8 streams, ms", source="c8.first", time=True),
    TableRow(what="time to first token p50, 32 streams, ms", source="c32.first", time=True),
    TableRow(what="output tokens/s, 8 streams, shared prefix", source="shared.out"),
    TableRow(what="time per token after 4,000 words, 1 stream, ms", source="long.each", time=True),
    TableRow(what="time to first token after 4,000 words, 1 stream, ms", source="long.first", time=True),
    *(
        TableRow(what=f"prefill of {tokens} tokens, tokens/s", source=f"{PREFILL}.{tokens}")
        for tokens in PREFILL_TOKENS
    ),
    TableRow(what="the same file, output tokens/s, 1 stream", source="c1.out", same_file=True),
    TableRow(what="the same file, output tokens/s, 8 streams", source="c8.out", same_file=True),
    TableRow(what="the same file, output tokens/s, 32 streams", source="c32.out", same_file=True),
    TableRow(what="output tokens/s, 32 streams over HTTP, against in process", source=f"{IN_PROCESS}.c32"),
    TableRow(what="output tokens/s, 64 streams over HTTP, against in process", source=f"{IN_PROCESS}.c64"),
    TableRow(what="time per token through HTTP, 1 stream, ms", source=STEP, time=True),
)


@attrs.frozen(kw_only=True)
class TableFinding:
    """A row that was measured: both sides over the rounds, and the ratio of medians with its lowest and highest round."""

    row: TableRow
    peer: str
    ours: Spread
    theirs: Spread
    ratio: Spread


def findings(values: Values, same_files: Collection[str]) -> list[TableFinding]:
    """Return the rows for which both sides were measured; `same_files` are the peers that serve the same file as tlserve."""
    found = (_find(row, values.get(row.source, {}), same_files) for row in ROWS)
    return [finding for finding in found if finding is not None]


def _find(row: TableRow, by_who: Mapping[str, Sequence[float]], same_files: Collection[str]) -> TableFinding | None:
    ours = by_who.get(OURS)
    peers = [who for who in by_who if who != OURS and (who in same_files or not row.same_file)]
    if not ours or not peers:
        return None
    best = (min if row.time else max)(peers, key=lambda who: statistics.median(by_who[who]))
    theirs = by_who[best]
    return TableFinding(
        row=row,
        peer=best,
        ours=spread_of(ours),
        theirs=spread_of(theirs),
        ratio=ratio_of(list(zip(ours, theirs, strict=True))),
    )
