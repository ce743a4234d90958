"""The table of faults in `docs/how-to/test-in-ci.md`: its settings provoke what it says."""

import json
import re
from typing import Any

import pytest

from tests.kit.http.gated_server import gated_server
from tests.kit.http.http_calls import chat
from tests.kit.source_tree import CHECKOUT

PAGE = (CHECKOUT / "docs/how-to/test-in-ci.md").read_text(encoding="utf-8")


def settings_of(fault: str) -> dict[str, Any]:
    """Return the settings of engine in the row of a fault."""
    (row,) = re.findall(rf"^\| {re.escape(fault)} .*$", PAGE, re.MULTILINE)
    return {name: int(value) for name, value in re.findall(r"--set (\w+)=(\d+)", row)}


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [("429 with `Retry-After`", 429, "rate_limit_exceeded"), ("503 `no_capacity`", 503, "no_capacity")],
)
async def test_a_second_request_gets_what_the_table_says(fault: str, status: int, code: str) -> None:
    async with gated_server(**settings_of(fault)) as host:
        ahead = await host.send(chat("a", max_tokens=3))
        await host.wait_step()
        answer = await (await host.send(chat("a", max_tokens=3))).answer()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
        assert int(answer.headers.get("retry-after") or 0) >= 1
        host.gate.open_all()
        assert (await ahead.answer()).status == 200
