"""The libraries of Python whose requests are recorded: `python sdks.py NAME URL`; needs nothing of nanoserve."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import agents
import litellm as litellm_library
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from openai.types.shared import Reasoning

MODEL, KEY, QUESTION = "talker", "x", "Will it rain in Rome?"
TALKS: dict[str, Callable[[str], None]] = {}


def talk(function: Callable[[str], None]) -> Callable[[str], None]:
    """One of the libraries."""
    TALKS[function.__name__] = function
    return function


def weather(city: str, days: int = 1) -> str:
    """Say whether it will rain."""
    return f"it stays dry in {city} for {days} days"


@talk
def openai_agents(url: str) -> None:
    """Both of its models, whole and streamed."""
    agents.set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
    wishes = agents.ModelSettings(
        reasoning=Reasoning(effort="low", summary="auto"),
        store=False,
        verbosity="low",
        response_include=["reasoning.encrypted_content"],
        parallel_tool_calls=False,
    )

    async def run(kind: Any, settings: agents.ModelSettings) -> None:
        agent = agents.Agent(
            name="talker",
            instructions="Be short.",
            tools=[agents.function_tool(weather)],
            model=kind(model=MODEL, openai_client=client),
            model_settings=settings,
        )
        await agents.Runner.run(agent, QUESTION)
        async for _ in agents.Runner.run_streamed(agent, QUESTION).stream_events():
            pass

    async def run_all() -> None:
        for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            for settings in (agents.ModelSettings(), wishes):
                await run(kind, settings)

    asyncio.run(run_all())


@talk
def langchain(url: str) -> None:
    """Its models of four interfaces, in an agent's loop, whole and streamed."""
    summed = {"effort": "low", "summary": "auto"}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    models: list[Any] = [
        ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key=KEY),
        ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key=KEY, use_responses_api=True, reasoning=summed),
        ChatAnthropic(model=MODEL, base_url=url, api_key=KEY, max_tokens=2000, thinking=thinking),
        ChatOllama(model=MODEL, base_url=url, reasoning=True),
    ]
    for model in models:
        agent = create_agent(model, tools=[tool(weather)], system_prompt="Be short.")
        asked: Any = {"messages": [{"role": "user", "content": QUESTION}]}
        print(agent.invoke(asked)["messages"][-1].content)
        print(len(list(agent.stream(asked, stream_mode="messages"))), "pieces")


@talk
def litellm(url: str) -> None:
    """Four of its routes, each with the call's result sent back."""
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["city"]}
    function = {"name": "weather", "description": "Say whether it will rain.", "parameters": schema}
    openai = f"{url}/v1"
    for route, base in (
        ("openai", openai),
        ("hosted_vllm", openai),
        ("anthropic", url),
        ("ollama_chat", url),
    ):
        for stream in (False, True):
            messages: list[Any] = [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": QUESTION},
            ]
            for _ in range(2):
                given = litellm_library.completion(
                    model=f"{route}/{MODEL}",
                    api_base=base,
                    api_key=KEY,
                    messages=messages,
                    tools=[{"type": "function", "function": function}],
                    stream=stream,
                    max_tokens=1000,
                )
                whole = (
                    litellm_library.stream_chunk_builder(list(given), messages=messages) if stream else given
                )
                message = whole.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                messages += [
                    {
                        "role": "tool",
                        "tool_call_id": each.id,
                        "name": "weather",
                        "content": weather("Rome", 2),
                    }
                    for each in message.tool_calls or ()
                ]


if __name__ == "__main__":
    TALKS[sys.argv[1]](sys.argv[2])
