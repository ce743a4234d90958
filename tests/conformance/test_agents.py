"""Agents whose default path is /v1/responses: openai-agents and pydantic-ai, with a real model.

A small model writes much after the result of a tool: a stop string ends its answer there, as an agent's own settings can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticModel
from pydantic_ai.providers.openai import OpenAIProvider

from tlserve.testing import serve_in_thread

pytestmark = [pytest.mark.slow, pytest.mark.real_model]
QUIET = RunConfig(tracing_disabled=True)
CAPITAL = "What is the capital of France?"


class Pair(BaseModel):
    """An answer of two values."""

    first: int
    second: bool


@pytest.fixture(scope="module")
def base_url(smol_path: Path) -> Iterator[str]:
    with serve_in_thread(smol_path, settings={"engine.model_id": "smol"}) as server:
        yield server.base_url


def run_agent(base_url: str, prompt: str, settings: ModelSettings, *, stream: bool = False, **options: Any) -> Any:
    """Return the result of an agent of openai-agents."""

    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            model = OpenAIResponsesModel(model="smol", openai_client=client)
            agent: Agent[Any] = Agent(name="a", model=model, model_settings=settings, **options)
            if not stream:
                return await Runner.run(agent, prompt, run_config=QUIET)
            result = Runner.run_streamed(agent, prompt, run_config=QUIET)
            kinds = [event.type async for event in result.stream_events()]
            assert "raw_response_event" in kinds
            return result

    return asyncio.run(run())


@pytest.mark.spec("RSP-33")
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_answers_and_calls_its_tool(base_url: str, stream: bool) -> None:
    sums: list[int] = []

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        sums.append(a + b)
        return a + b

    plain = run_agent(base_url, CAPITAL, ModelSettings(temperature=0), stream=stream, instructions="Be brief.")
    assert "Paris" in plain.final_output
    settings = ModelSettings(
        temperature=0, tool_choice="required", parallel_tool_calls=False, extra_body={"stop": [".", "\n"]}
    )
    result = run_agent(base_url, "Add 3 and 4.", settings, stream=stream, tools=[add])
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
    assert kinds[-1] == "message_output_item"
    assert sums == [7]


@pytest.mark.spec("RSP-33")
def test_an_agent_returns_its_output_type(base_url: str) -> None:
    result = run_agent(base_url, "Give me a pair.", ModelSettings(temperature=0), output_type=Pair)
    assert isinstance(result.final_output, Pair)


@pytest.mark.spec("RSP-33")
def test_pydantic_ai_answers_in_text_and_in_its_output_type(base_url: str) -> None:
    async def run() -> tuple[Any, Any]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            model = PydanticModel("smol", provider=OpenAIProvider(openai_client=client))
            plain = await PydanticAgent(model, model_settings={"temperature": 0}).run(CAPITAL)
            typed = await PydanticAgent(model, output_type=Pair, model_settings={"temperature": 0}).run(
                "Give me a pair."
            )
            return plain.output, typed.output

    text, pair = asyncio.run(run())
    assert "Paris" in text
    assert isinstance(pair, Pair)
