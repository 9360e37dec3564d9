"""The talks of `tools.outside_clients`; needs nothing of nanoserve, only the clients and a URL."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import instructor
import litellm
import openai
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODEL, KEY = "talker", "x"
ANSWER = "It stays dry at noon."
TALKS: dict[str, Callable[[str], None]] = {}


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


ADA = Person(name="Ada", age=36)


def weather(city: str, days: int = 1) -> str:
    """Say whether it will rain."""
    return f"no rain in {city} for {days} days"


def clock(zone: str) -> str:
    """Say what time it is."""
    return f"noon in {zone}"


def talk(function: Callable[[str], None]) -> Callable[[str], None]:
    """One of the talks."""
    TALKS[function.__name__] = function
    return function


def same(found: object, expected: object) -> None:
    """Say how they differ, if they do."""
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


@talk
def instructor_in_every_mode(url: str) -> None:
    """A model of pydantic by tools, by a schema and by JSON in the text."""
    for mode, question in (
        (instructor.Mode.TOOLS, "Who called?"),
        (instructor.Mode.TOOLS_STRICT, "Who called?"),
        (instructor.Mode.PARALLEL_TOOLS, "Who called?"),
        (instructor.Mode.JSON, "Who wrote?"),
        (instructor.Mode.JSON_SCHEMA, "Who wrote?"),
    ):
        client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY), mode=mode)
        messages = [{"role": "user", "content": question}]
        if mode is instructor.Mode.PARALLEL_TOOLS:
            several = client.create(
                model=MODEL, messages=messages, response_model=Iterable[Person], max_retries=0
            )
            same([each.model_dump() for each in several], [ADA.model_dump()])
            continue
        found = client.create(model=MODEL, messages=messages, response_model=Person, max_retries=0)
        same((mode, found.model_dump()), (mode, ADA.model_dump()))
        if question == "Who called?":
            messages = [{"role": "user", "content": "Who came?"}]
        *_, last = client.create_partial(model=MODEL, messages=messages, response_model=Person, max_retries=0)
        same((mode, last.model_dump()), (mode, ADA.model_dump()))


@talk
def instructor_of_responses(url: str) -> None:
    """The same by the other interface."""
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY), mode=instructor.Mode.RESPONSES_TOOLS
    )
    found = client.responses.create(model=MODEL, input="Who called?", response_model=Person, max_retries=0)
    same(found.model_dump(), ADA.model_dump())


@talk
def langchain_structured_output(url: str) -> None:
    """By each of its methods, whole and streamed, by both interfaces."""
    for responses in (False, True):
        model = ChatOpenAI(
            model=MODEL, base_url=f"{url}/v1", api_key=KEY, max_retries=0, use_responses_api=responses
        )
        for method, question in (
            ("json_schema", "Who wrote?"),
            ("json_mode", "Who wrote?"),
            ("function_calling", "Who called?"),
        ):
            structured = model.with_structured_output(Person, method=method)
            same(structured.invoke(question), ADA)
            *_, last = structured.stream(question)
            same(last, ADA)


@talk
def langchain_agent(url: str) -> None:
    """Two tools, then an answer, whole and streamed, by both interfaces."""
    tools = [tool(weather), tool(clock)]
    question = {"messages": [{"role": "user", "content": "Rain?"}]}
    for responses in (False, True):
        for streaming in (False, True):
            model = ChatOpenAI(
                model=MODEL,
                base_url=f"{url}/v1",
                api_key=KEY,
                max_retries=0,
                streaming=streaming,
                use_responses_api=responses,
            )
            agent = create_agent(model, tools)
            messages = agent.invoke(question)["messages"]
            same(messages[-1].text, ANSWER)
            results = sorted(each.content for each in messages if each.type == "tool")
            same(results, [weather("Rome", 3), clock("CET")])
            pieces = [
                piece.text
                for piece, place in agent.stream(question, stream_mode="messages")
                if place["langgraph_node"] == "model"
            ]
            same("".join(pieces).removeprefix("Let me see.").strip(), ANSWER)


def _models(url: str) -> list[Any]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    return [
        OpenAIChatModel(MODEL, provider=provider),
        OpenAIResponsesModel(MODEL, provider=provider),
        AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY)),
    ]


@talk
def pydantic_ai_agent(url: str) -> None:
    """Two tools, then an answer, whole and streamed, by three interfaces."""

    async def streamed(agent: Agent[None, str]) -> str:
        async with agent.run_stream("Rain?") as run:
            pieces = [piece async for piece in run.stream_text(delta=True)]
        return "".join(pieces)

    async def stepped(agent: Agent[None, str]) -> str:
        async with agent.iter("Rain?") as run:
            async for _ in run:
                pass
        return "" if run.result is None else run.result.output

    for model in _models(url):
        agent = Agent(model, tools=[weather, clock], model_settings={"max_tokens": 1000})
        same(agent.run_sync("Rain?").output, ANSWER)
        same(asyncio.run(stepped(agent)), ANSWER)
        # A text before calls ends a streamed run: the pieces are those of the first turn.
        same(asyncio.run(streamed(agent)).strip() in {ANSWER, "Let me see."}, True)


@talk
def pydantic_ai_output(url: str) -> None:
    """A model of pydantic by a tool and by a schema, whole and streamed, by three interfaces."""

    async def streamed(agent: Any, question: str) -> Any:
        async with agent.run_stream(question) as run:
            return await run.get_output()

    for model in _models(url):
        outputs = [(Person, "Who ended?"), (NativeOutput(Person), "Who wrote?")]
        if isinstance(model, AnthropicModel):  # for which it asks for a schema only of models that it knows
            del outputs[1:]
        for output, question in outputs:
            agent = Agent(model, output_type=output, model_settings={"max_tokens": 1000})
            same(agent.run_sync(question).output, ADA)
            same(asyncio.run(streamed(agent, question)), ADA)


@talk
def litellm_conversation(url: str) -> None:
    """Two tools, then an answer, whole and streamed, by OpenAI's and Anthropic's interfaces."""
    functions: dict[str, Callable[..., str]] = {"weather": weather, "clock": clock}
    parameters = {
        "weather": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "clock": {"zone": {"type": "string"}},
    }
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": function.__doc__,
                "parameters": {
                    "type": "object",
                    "properties": parameters[name],
                    "required": [*parameters[name]][:1],
                },
            },
        }
        for name, function in functions.items()
    ]
    for provider, base in (("openai", f"{url}/v1"), ("anthropic", url)):
        for stream in (False, True):
            messages: list[Any] = [{"role": "user", "content": "Rain?"}]
            for _ in range(2):
                answer = litellm.completion(
                    model=f"{provider}/{MODEL}",
                    api_base=base,
                    api_key=KEY,
                    messages=messages,
                    tools=tools,
                    stream=stream,
                    max_tokens=1000,
                    num_retries=0,
                )
                whole = litellm.stream_chunk_builder(list(answer)) if stream else answer
                said = whole.choices[0].message
                messages.append(said.model_dump())
                for call in said.tool_calls or ():
                    result = functions[call.function.name](**json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            same([each["role"] for each in messages], ["user", "assistant", "tool", "tool", "assistant"])
            same(messages[-1]["content"], ANSWER)
            same(messages[-1]["reasoning_content"], "dry")


@talk
def litellm_schema(url: str) -> None:
    """A model of pydantic as the format, whole and streamed."""
    for stream in (False, True):
        answer = litellm.completion(
            model=f"openai/{MODEL}",
            api_base=f"{url}/v1",
            api_key=KEY,
            messages=[{"role": "user", "content": "Who wrote?"}],
            response_format=Person,
            stream=stream,
            num_retries=0,
        )
        whole = litellm.stream_chunk_builder(list(answer)) if stream else answer
        same(Person.model_validate_json(whole.choices[0].message.content), ADA)


def main(url: str, only: str) -> int:
    """Have them all; how many failed."""
    failed = 0
    warnings.simplefilter("ignore", UserWarning)  # LangChain's, of its own pydantic models
    litellm.suppress_debug_info = True
    for name, function in TALKS.items():
        if not name.startswith(only):
            continue
        try:
            function(url)
        except Exception:  # noqa: BLE001 - whatever a client raises is a finding
            traceback.print_exc(limit=-6)
            failed += 1
            print(f"FAILED {name}", flush=True)
        else:
            print(f"ok     {name}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
