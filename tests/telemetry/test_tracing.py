"""Traces: one span per request, its times and attributes, in the caller's trace, and never a text."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.kit.http.memory_http import MemoryServer, memory_server
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.chat.served_model import Catalogue, Served
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import ApiContext
from tlserve.errors import ServerFault
from tlserve.http.client.connection import HttpResponse
from tlserve.telemetry.otel import OtelTracer
from tlserve.telemetry.request_log import RequestRecord
from tlserve.telemetry.span_facts import span_facts
from tlserve.telemetry.tracing import trace_id_of
from tlserve.text.byte_tokenizer import ByteTokenizer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CALLER = ("traceparent", f"00-{TRACE}-{PARENT}-01")
START_S = 1_700_000_000.5
SECRET = "wholly-private-words"
PLAIN = Script()


@attrs.frozen
class Traced:
    """A server whose spans stay in memory."""

    server: MemoryServer
    exporter: InMemorySpanExporter
    records: list[RequestRecord]

    async def chat(self, *headers: tuple[str, str], **fields: object) -> HttpResponse:
        body = {"model": "succ", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 3, **fields}
        client = self.server.client
        return await client.request("POST", "/v1/chat/completions", headers, json.dumps(body).encode())

    @property
    def span(self) -> ReadableSpan:
        """The one span that has ended."""
        (span,) = self.exporter.get_finished_spans()
        return span


@asynccontextmanager
async def traced(script: Script = PLAIN, *, tracing: bool = True) -> AsyncIterator[Traced]:
    exporter, records = InMemorySpanExporter(), list[RequestRecord]()
    tracer = OtelTracer(SimpleSpanProcessor(exporter), "0") if tracing else None
    served = Served(
        model_id="succ",
        created=0,
        backend=ScriptedBackend(script, attrs.evolve(ScriptedBackend().info(), context_tokens=4096)),
        tokenizer=ByteTokenizer(),
        template=Template.parse(DEFAULT_TEMPLATE),
    )
    api = ApiContext(catalogue=Catalogue([served]), now_s=lambda: START_S, log=records.append, tracer=tracer)
    async with memory_server(make_api_handler(api), api.settings, make_fault_renderer(api.new_id, api.log)) as server:
        yield Traced(server, exporter, records)


@pytest.mark.spec("TEL-16")
async def test_a_span_has_the_requests_times_as_events(autojump_clock) -> None:
    async with traced(Script(queue_s=1, prefill_s=2, token_s=0.5)) as api:
        await api.chat()
    start_ns = int(START_S * 1e9)
    assert api.span.start_time == start_ns
    assert [(event.name, event.timestamp - start_ns) for event in api.span.events] == [
        ("queued", 0),
        ("prefill started", 1_000_000_000),
        ("first token", 3_000_000_000),
        ("finished", 4_000_000_000),
    ]
    assert api.span.end_time == start_ns + 4_000_000_000


async def test_a_span_names_the_model_by_the_conventions() -> None:
    async with traced() as api:
        answer = await api.chat(("X-Request-Id", "r1"))
    usage = json.loads(answer.body)["usage"]
    assert api.span.name == "chat succ"
    assert api.span.kind.name == "SERVER"
    assert dict(api.span.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tlserve",
        "gen_ai.request.model": "succ",
        "gen_ai.response.model": "succ",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "tlserve.request_id": "r1",
    }
    assert api.span.status.is_unset


@pytest.mark.spec("TEL-16")
async def test_the_callers_trace_and_its_state_continue() -> None:
    async with traced() as api:
        answer = await api.chat(CALLER, ("tracestate", "vendor=1"))
    context = api.span.context
    assert api.span.parent is not None
    assert (f"{context.trace_id:032x}", f"{api.span.parent.span_id:016x}") == (TRACE, PARENT)
    assert context.trace_state.get("vendor") == "1"
    assert answer.headers.get("traceparent") == f"00-{TRACE}-{context.span_id:016x}-01"
    assert api.records[0].trace_id == TRACE


async def test_without_a_caller_the_span_begins_a_trace_and_the_answer_names_it() -> None:
    async with traced() as api:
        answer = await api.chat()
    assert api.span.parent is None
    assert str(answer.headers.get("traceparent")).split("-")[1] == f"{api.span.context.trace_id:032x}"


async def test_a_caller_who_does_not_record_is_not_recorded() -> None:
    async with traced() as api:
        answer = await api.chat(("traceparent", f"00-{TRACE}-{PARENT}-00"))
    assert api.exporter.get_finished_spans() == ()
    assert str(answer.headers.get("traceparent")).endswith("-00")


async def test_two_traceparents_count_as_none() -> None:
    async with traced() as api:
        await api.chat(CALLER, CALLER)
    assert f"{api.span.context.trace_id:032x}" != TRACE


@pytest.mark.spec("TEL-17")
@pytest.mark.parametrize("stream", [True, False])
async def test_no_text_of_a_prompt_or_an_answer_is_in_a_span(stream: bool) -> None:
    async with traced() as api:
        await api.chat(stream=stream)
    assert SECRET not in api.span.to_json()
    assert "tuv" not in api.span.to_json()


async def test_a_fault_of_ours_is_an_error_and_a_refusal_is_not() -> None:
    async with traced(Script(failure=ServerFault("broken"), fail_before=1)) as api:
        assert (await api.chat(temperature=9)).status == 400
        assert (await api.chat()).status == 500
        assert b'"error"' in (await api.chat(stream=True)).body
    refused, failed, cut = api.exporter.get_finished_spans()
    assert refused.status.is_unset
    assert (failed.status.is_ok, (failed.attributes or {})["error.type"]) == (False, "500")
    assert (cut.status.status_code.name, (cut.attributes or {})["error.type"]) == ("ERROR", "stream_error")
    assert [event.name for event in failed.events] == ["queued", "prefill started", "first token"]


async def test_without_a_tracer_the_log_still_names_the_callers_trace() -> None:
    async with traced(tracing=False) as api:
        answer = await api.chat(CALLER)
        await api.chat()
    assert "traceparent" not in answer.headers
    assert [record.trace_id for record in api.records] == [TRACE, None]


@given(method=st.text(max_size=8), path=st.text(max_size=300))
def test_names_of_spans_are_few_whatever_clients_send(method: str, path: str) -> None:
    facts = span_facts(RequestRecord(request_id="r", method=method, path=path, status=404))
    assert facts.name in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HTTP", "chat"}
    assert len(str(facts.attributes["url.path"])) <= 200


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE),
        (f"01-{TRACE}-{PARENT}-01-more", TRACE),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f" 00-{TRACE}-{PARENT}-01", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_well_formed_traceparent_names_a_trace(header: str | None, trace: str | None) -> None:
    assert trace_id_of(header) == trace


@pytest.mark.slow
@pytest.mark.spec("TEL-18")
def test_without_the_package_the_setting_is_refused_in_one_line() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None; from tlserve.cli import main; "
        "sys.exit(main(['--model', 'succ', '--port', '0', '--set', 'telemetry.traces_endpoint=http://127.0.0.1:9/v1/traces']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 4
    (line,) = ended.stderr.splitlines()
    assert "telemetry.traces_endpoint" in line
    assert "pip install 'tlserve[otel]'" in line


@pytest.mark.slow
@pytest.mark.spec("TEL-18")
def test_without_the_setting_the_package_is_not_imported() -> None:
    program = "import sys, tlserve.programs.server; print('opentelemetry' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "False\n"
