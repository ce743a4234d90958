"""Throughput and latency against the load, as one SVG: three panels, one line for each target.

Owns the drawing; points are its input. The picture has its own background and follows the light or dark scheme of the reader, so
that it can be used in a README as it is. A mouse and a screen reader get the value of every point. Source: SVG 1.1;
`prefers-color-scheme` of CSS Media Queries 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import attrs

WIDTH, HEIGHT = 960, 320
_PANEL_WIDTH, _LEFT, _TOP, _PLOT_HEIGHT, _PLOT_WIDTH = 320, 56, 68, 196, 240
_TICKS = 4
_STYLE = """
.ground { fill: #ffffff } .grid { stroke: #d8dee4 } text { fill: #1f2328; font: 12px sans-serif }
.head { font-weight: 600 } .t0 { stroke: #0969da; fill: #0969da } .t1 { stroke: #bc4c00; fill: #bc4c00 }
.line { fill: none; stroke-width: 2 } .spread { stroke-width: 1 } .dot { stroke: none }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .grid { stroke: #30363d } text { fill: #e6edf3 }
.t0 { stroke: #58a6ff; fill: #58a6ff } .t1 { stroke: #f0883e; fill: #f0883e } .line { fill: none }
}
"""


@attrs.frozen
class Point:
    """One value with the ends of its range, at the load with the same index."""

    value: float
    low: float
    high: float


@attrs.frozen
class Panel:
    """One measure: `lines` has a list of points for each target, None for a missing value."""

    title: str
    lines: Sequence[Sequence[Point | None]]


@attrs.frozen
class Picture:
    """The content of a plot: the names of the loads from left to right, their title, the names of the targets, the panels."""

    load_names: Sequence[str]
    load_title: str
    target_names: Sequence[str]
    panels: Sequence[Panel]


def draw(picture: Picture) -> str:
    """Return the SVG document of at most three panels and two targets."""
    inside = [*_legend(picture.target_names)]
    for number, panel in enumerate(picture.panels):
        inside += [f'<g transform="translate({number * _PANEL_WIDTH} 0)">', *_panel(panel, picture), "</g>"]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    titles = ", ".join(panel.title for panel in picture.panels)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(titles)} against {escape(picture.load_title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
            *inside,
            "</svg>\n",
        ]
    )


def _legend(names: Sequence[str]) -> Iterator[str]:
    x = _LEFT
    for number, name in enumerate(names):
        yield f'<circle class="dot t{number}" cx="{x}" cy="22" r="5"/>'
        yield f'<text x="{x + 12}" y="26">{escape(name)}</text>'
        x += 44 + 7 * len(name)


def _panel(panel: Panel, picture: Picture) -> Iterator[str]:
    top = nice_ceiling(max((point.high for line in panel.lines for point in line if point), default=0.0))
    yield f'<text class="head" x="{_LEFT}" y="54">{escape(panel.title)}</text>'
    for tick in range(_TICKS + 1):
        y = _y(top * tick / _TICKS, top)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}h{_PLOT_WIDTH}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * tick / _TICKS:g}</text>'
    for place, name in enumerate(picture.load_names):
        x = _x(place, len(picture.load_names))
        yield f'<text x="{x:.1f}" y="{_TOP + _PLOT_HEIGHT + 18}" text-anchor="middle">{escape(name)}</text>'
    middle = _LEFT + _PLOT_WIDTH / 2
    yield f'<text x="{middle:g}" y="{_TOP + _PLOT_HEIGHT + 38}" text-anchor="middle">{escape(picture.load_title)}</text>'
    for number, line in enumerate(panel.lines):
        yield from _line(line, number, picture, top)


def _line(line: Sequence[Point | None], number: int, picture: Picture, top: float) -> Iterator[str]:
    placed = [(_x(place, len(line)), point, picture.load_names[place]) for place, point in enumerate(line) if point]
    path = " ".join(f"{x:.1f},{_y(point.value, top):.1f}" for x, point, _ in placed)
    yield f'<polyline class="line t{number}" points="{path}"/>'
    for x, point, load in placed:
        y, low, high = (_y(value, top) for value in (point.value, point.low, point.high))
        said = f"{picture.target_names[number]} at {load}: {point.value:.4g} ({point.low:.4g} to {point.high:.4g})"
        yield f'<path class="spread t{number}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
        yield f'<circle class="dot t{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(said)}</title></circle>'


def _x(place: int, count: int) -> float:
    """Return the middle of the `place`-th of `count` equal columns."""
    return _LEFT + _PLOT_WIDTH * (place + 0.5) / count


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - value / top)


def nice_ceiling(value: float) -> float:
    """Return the smallest of 1, 2, 4, 6, 8, 10 times a power of ten that is not below `value`; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(step for step in (1, 2, 4, 6, 8, 10) if step * power >= value * (1 - 1e-9))
