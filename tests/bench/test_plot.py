"""The picture: well-formed, inside its frame, to scale, readable on light and dark backgrounds."""

import xml.etree.ElementTree as ET

import pytest

from tlserve.bench.comparison import LoadRun
from tlserve.bench.figures import figures_of
from tlserve.bench.load import Closed, Open
from tlserve.bench.picture import picture_of
from tlserve.bench.plot import HEIGHT, WIDTH, Panel, Picture, Point, draw, nice_ceiling
from tlserve.bench.samples import Failure, Sample

SVG = "{http://www.w3.org/2000/svg}"


def points(*values):
    return [None if value is None else Point(value, value / 2, value) for value in values]


def picture(*lines, names=("ours", "theirs")):
    return Picture(["1", "8", "32"][: len(lines[0])], "clients", names[: len(lines)], [Panel("speed", lines)])


def circles(svg):
    """Return (x, y, text) of every point, without those of the legend."""
    found = [(node, node.find(f"{SVG}title")) for node in ET.fromstring(svg).iter(f"{SVG}circle")]
    return [(float(node.get("cx")), float(node.get("cy")), title.text) for node, title in found if title is not None]


@pytest.mark.spec("BENCH-23")
def test_every_value_is_a_point_inside_the_frame_to_scale():
    placed = circles(draw(picture(points(10, 20, 40), points(5, 10, 20))))
    assert len(placed) == 6
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y, _ in placed)
    (_, at_10, _), (_, at_20, _), (_, at_40, _) = placed[:3]
    assert at_10 - at_20 == pytest.approx((at_20 - at_40) / 2, abs=0.11)
    assert placed[3][0] == placed[0][0], "the same load is in the same column"


def test_a_point_says_its_target_load_value_and_range():
    assert circles(draw(picture(points(10, 20, 40))))[1][2] == "ours at 8: 20 (10 to 20)"


def test_a_missing_value_has_no_point():
    assert len(circles(draw(picture(points(10, None, 40))))) == 2
    assert circles(draw(picture(points(None, None, None)))) == []


def test_names_are_text_whatever_they_are():
    svg = draw(picture(points(1, 2, 3), names=("<b>&\"'",)))
    assert circles(svg)[0][2].startswith("<b>&\"'")


@pytest.mark.spec("BENCH-23")
def test_light_and_dark_themes_both_have_a_background_and_ink():
    svg = draw(picture(points(1)))
    light, dark = svg.split("@media (prefers-color-scheme: dark)")
    assert all(name in part for part in (light, dark) for name in (".ground {", "text {", ".t0 {", ".grid {"))


@pytest.mark.parametrize(("value", "ceiling"), [(0, 1), (0.03, 0.04), (1, 1), (1.01, 2), (9, 10), (47, 60), (100, 100)])
def test_an_axis_ends_at_a_round_number(value, ceiling):
    assert nice_ceiling(value) == pytest.approx(ceiling)


def run(target, load, tokens):
    sample = Sample(
        due_s=0, first_token_s=0.5, last_token_s=1, ended_s=1, prompt_tokens=1, output_tokens=tokens, counted=True
    )
    return LoadRun(target=target, load=load, repeat=0, figures=figures_of([sample]))


def test_three_panels_are_drawn_of_the_runs_of_every_target():
    runs = [run(target, Closed(streams), 9) for streams in (1, 8) for target in ("a", "b")]
    made = picture_of(runs, ("a", "b"))
    assert made.load_names == ["1", "8"]
    assert made.load_title == "concurrent clients"
    assert [len(panel.lines) for panel in made.panels] == [2, 2, 2]
    assert made.panels[0].lines[1][0] == Point(9, 9, 9)
    assert len(circles(draw(made))) == 3 * 2 * 2


def test_an_open_loop_is_drawn_against_its_rate_and_a_dead_run_has_no_times():
    failure = Failure(kind="connect", message="", due_s=0, ended_s=1)
    dead = LoadRun(target="a", load=Open(0.5), repeat=0, figures=figures_of([failure]))
    made = picture_of([dead, run("a", Open(2), 4)], ("a",))
    assert (made.load_names, made.load_title) == (["0.5", "2"], "requests per second")
    assert made.panels[1].lines[0][0] is None
