"""The request log: one line for any input of a client, and never the text of a prompt or an answer."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlserve.telemetry.logs import LogEvent, set_up_logs
from tlserve.telemetry.request_log import RequestFigures, RequestRecord, log_request, request_line


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A log stream; the loggers are restored afterwards."""
    loggers = [logging.getLogger(name) for name in ("tlserve", "opentelemetry")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield io.StringIO()
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.spec("TEL-6")
def test_a_line_has_id_status_tokens_and_times() -> None:
    record = RequestRecord(
        request_id="req-1",
        method="POST",
        path="/v1/chat/completions",
        status=200,
        model="succ",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=3,
        finish="length",
        queue_ms=0.04,
        first_token_ms=1.25,
        total_ms=10.0,
    )
    assert request_line(record) == (
        "id=req-1 method=POST path=/v1/chat/completions status=200 model=succ prompt_tokens=1 cached_tokens=0 "
        "completion_tokens=3 finish=length queue_ms=0.0 first_token_ms=1.2 total_ms=10.0"
    )


def test_unknown_values_are_left_out() -> None:
    record = RequestRecord(request_id="r", method="GET", path="/healthz", status=200)
    assert request_line(record) == "id=r method=GET path=/healthz status=200"


@pytest.mark.spec("TEL-8")
def test_a_query_is_cut_off() -> None:
    assert "secret" not in request_line(RequestRecord(request_id="r", method="GET", path="/a?key=secret", status=200))


def test_a_refusal_has_its_kind_and_its_field() -> None:
    record = RequestRecord(
        request_id="r", method="POST", path="/v1/x", status=400, error="wrong", param="messages[0].role"
    )
    assert request_line(record) == 'id=r method=POST path=/v1/x status=400 error=wrong param="messages[0].role"'


@pytest.mark.spec("TEL-7")
@settings(deadline=None)
@given(text=st.text(max_size=400))
def test_no_client_text_can_break_out_of_its_value(text: str) -> None:
    line = request_line(RequestRecord(request_id=text, method=text, path=text, status=400, model=text))
    assert line.isascii()
    assert line.isprintable()
    rest = line.replace(r"\\", "").replace(r"\"", "")
    outside = "".join(rest.split('"')[0::2])
    assert outside.count("=") == 5


def test_a_long_value_is_cut() -> None:
    assert len(request_line(RequestRecord(request_id="x" * 10**6, method="GET", path="/", status=400))) < 300


@pytest.mark.spec("TEL-8")
def test_the_record_has_no_field_for_text() -> None:
    assert {field.name for field in attrs.fields(RequestRecord)} == {
        *("request_id", "method", "path", "status", "error", "param", "key", "model", "finish"),
        *("prompt_tokens", "cached_tokens", "completion_tokens"),
        *("prepared_ms", "load_ms", "queue_ms", "first_token_ms", "total_ms", "trace_id"),
    }


@pytest.mark.spec("TEL-6")
def test_each_request_is_one_line_with_time_and_severity(stream: io.StringIO) -> None:
    set_up_logs("info", stream)
    log_request(RequestRecord(request_id="a\nb", method="GET", path="/", status=200))
    log_request(RequestRecord(request_id="c", method="GET", path="/", status=500))
    first, second = stream.getvalue().splitlines()
    assert first.partition("Z ")[2] == r'info tlserve.request id="a\nb" method=GET path=/ status=200'
    assert second.partition("Z ")[2] == "warning tlserve.request id=c method=GET path=/ status=500"


def test_the_level_is_the_lowest_severity_that_is_written(stream: io.StringIO) -> None:
    set_up_logs("error", stream)
    log_request(RequestRecord(request_id="c", method="GET", path="/", status=500))
    assert stream.getvalue() == ""


def test_a_second_set_up_replaces_the_first(stream: io.StringIO) -> None:
    set_up_logs("info", io.StringIO())
    set_up_logs("info", stream)
    log_request(RequestRecord(request_id="c", method="GET", path="/", status=200))
    assert len(stream.getvalue().splitlines()) == 1


def test_a_message_with_line_breaks_stays_one_line(stream: io.StringIO) -> None:
    set_up_logs("info", stream)
    logging.getLogger("tlserve.model").info("a\r\nb")
    assert stream.getvalue().endswith("info tlserve.model a\\r\\nb\n")
    assert stream.getvalue().count("\n") == 1


# --- one JSON document a line --------------------------------------------------------------------------------------------

KEYS = [
    *("time", "level", "logger", "event", "message", "id", "method", "path", "status"),
    *("error", "param", "key", "model"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "finish"),
    *("prepared_ms", "load_ms", "queue_ms", "first_token_ms", "total_ms", "trace_id"),
]


@pytest.mark.spec("TEL-14")
def test_a_request_in_json_always_has_the_same_keys(stream: io.StringIO) -> None:
    set_up_logs("info", stream, form="json")
    log_request(RequestRecord(request_id="a", method="GET", path="/healthz?x=secret", status=200))
    log_request(RequestRecord(request_id="b", method="POST", path="/v1/x", status=503, model="m", total_ms=1.26))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert list(first) == list(second) == KEYS
    assert (first["event"], first["message"], first["model"]) == ("request", "GET /healthz 200", None)
    assert (second["level"], second["status"], second["total_ms"]) == ("warning", 503, 1.3)
    assert "secret" not in stream.getvalue()


@pytest.mark.spec("TEL-14")
@settings(deadline=None)
@given(text=st.text(max_size=300))
def test_no_client_text_makes_a_second_document(text: str) -> None:
    output = io.StringIO()
    set_up_logs("info", output, form="json")
    log_request(RequestRecord(request_id=text, method=text, path=text, status=400, model=text))
    logging.getLogger("tlserve.x").info("%s", text)
    assert output.getvalue().isascii()
    assert [json.loads(line)["event"] for line in output.getvalue().splitlines()] == ["request", "message"]


def test_an_event_is_its_lines_for_people_and_one_record_for_programs(stream: io.StringIO) -> None:
    event = LogEvent("start", "it serves", ("it serves", "  here\x1b[2J"), {"model": "succ", "api": ["127.0.0.1:1"]})
    set_up_logs("info", stream)
    logging.getLogger("tlserve").info(event)
    assert [line.partition("Z ")[2] for line in stream.getvalue().splitlines()] == [
        "info tlserve it serves",
        r"info tlserve   here\x1b[2J",
    ]
    stream.truncate(stream.seek(0))
    set_up_logs("info", stream, form="json")
    logging.getLogger("tlserve").info(event)
    (document,) = map(json.loads, stream.getvalue().splitlines())
    assert {**document, "time": ""} == {
        "time": "",
        "level": "info",
        "logger": "tlserve",
        "event": "start",
        "message": "it serves",
        "model": "succ",
        "api": ["127.0.0.1:1"],
    }


@pytest.mark.spec("TEL-15")
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_of_a_traceback_can_be_mistaken_for_a_record(stream: io.StringIO, form: str) -> None:
    set_up_logs("info", stream, form=form)
    try:
        raise ValueError("x\n2026-01-01T00:00:00.000Z info tlserve.request id=forged\x1b[2J")
    except ValueError:
        logging.getLogger("tlserve").exception("it failed")
    lines = stream.getvalue().splitlines()
    assert "forged" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert all(line.startswith("    ") for line in lines[1:])
    assert form == "text" or json.loads(lines[0])["exception"].count("ValueError") == 2


def test_messages_of_the_package_for_traces_are_also_documents(stream: io.StringIO) -> None:
    set_up_logs("info", stream, form="json")
    logging.getLogger("opentelemetry.exporter").warning("the collector does not answer")
    assert json.loads(stream.getvalue())["logger"] == "opentelemetry.exporter"


# --- figures ----------------------------------------------------------------------------------------------------------


def test_every_figure_is_in_the_record() -> None:
    values: dict[str, Any] = {field.name: field.name for field in attrs.fields(RequestFigures)}
    figures = RequestFigures(**values)
    record = figures.record(request_id="r", method="GET", path="/", status=200, total_ms=1.0)
    told = attrs.asdict(record)
    assert {name for name, value in told.items() if value == name} == set(attrs.asdict(figures)) - {"began"}
    assert (record.request_id, record.method, record.path, record.status, record.total_ms) == (
        "r",
        "GET",
        "/",
        200,
        1.0,
    )


def test_counts_of_several_answers_are_sums_and_times_those_of_the_first() -> None:
    figures = RequestFigures(prompt_tokens=4, completion_tokens=4)
    assert figures.used_tokens == 0
    for at_ms in (5.0, 7.0):
        figures.note_start(3, at_ms)
        figures.note_first_token(at_ms + 1)
    assert (figures.cached_tokens, figures.completion_tokens, figures.used_tokens) == (6, 4, 8)
    assert (figures.queue_ms, figures.first_token_ms) == (5.0, 6.0)
