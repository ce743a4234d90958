"""`python -m tests.benchmarks.templates`: the times of a template, printed and as a document."""

import json
import sys

import pytest

from docs.make.templates_page import SOURCES, TIMES
from tests.benchmarks.templates import main


@pytest.mark.spec("CHAT-77")
def test_the_times_of_a_template_are_printed_and_written(monkeypatch, capsys, tmp_path):
    options = ["--only", "Nano", "--repeat", "1", "--output", str(tmp_path / "times.json")]
    monkeypatch.setattr(sys, "argv", ["templates", *options])
    main()
    assert "median ratio" in capsys.readouterr().out
    document = json.loads((tmp_path / "times.json").read_text())
    assert set(document["templates"]) == {name for name in SOURCES if "Nano" in name}
    assert all(time["ms"] > 0 and time["prompt_ms"] > 0 for time in document["templates"].values())


def test_the_page_has_measured_times_of_every_template():
    assert set(json.loads(TIMES.read_text())["templates"]) == set(SOURCES)
