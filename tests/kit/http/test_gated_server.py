"""The gated server: steps pass when the test opens the gate, and answers arrive as they are generated."""

import pytest

from tests.kit.http.gated_server import gated_server, parse_metrics, until
from tests.kit.http.http_calls import chat, content_of, parse_events


async def test_nothing_is_computed_before_a_step_is_let_through() -> None:
    async with gated_server() as host:
        talk = await host.send(chat("a", max_tokens=2, stream=True))
        await host.wait_step()
        await until(lambda: talk.seen)
        assert (talk.status, content_of(parse_events(talk.seen)), host.statistics.generated_tokens_total) == (
            200,
            "",
            0,
        )
        await host.pass_step()
        assert host.statistics.generated_tokens_total == 1
        await host.step()
        assert content_of(await talk.events()) == "bc"


async def test_settings_are_in_the_engine_table_or_the_one_before_underscores() -> None:
    async with gated_server(max_num_seqs=3, http__idle_timeout_ms=7) as host:
        settings = host.server.running.assembled.settings
        assert (settings.engine.max_num_seqs, settings.http.idle_timeout_ms) == (3, 7)


def test_a_repeated_series_or_help_is_detected() -> None:
    assert parse_metrics('# HELP a b\n# TYPE a gauge\na{x="1"} 2\n') == {"a{x='1'}": 2}
    with pytest.raises(AssertionError, match="HELP"):
        parse_metrics("# HELP a b\n# HELP a b\n# TYPE a gauge\na 2\n")
    with pytest.raises((AssertionError, ValueError)):
        parse_metrics("# TYPE a gauge\na 1\na 2\n")
