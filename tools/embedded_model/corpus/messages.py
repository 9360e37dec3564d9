"""Conversations with tools and thinking: messages as a client sends them, and the very turns that the template renders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tools.embedded_model.corpus.chats import Turn

Message = Mapping[str, Any]


def user(text: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "", calls: Sequence[Message] = ()) -> Message:
    """An assistant's message; `thought` is its reasoning, `calls` are calls of tools."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    return {**message, "tool_calls": list(calls)} if calls else message


@attrs.frozen
class Talk:
    """A conversation and the tools that it offers."""

    messages: Sequence[Message]
    tools: Sequence[Message] = ()

    def turns(self) -> list[Turn]:
        """(role, text) of each turn; reasoning is kept only behind the last question."""
        turns: list[Turn] = []
        if self.tools and self.messages[0]["role"] != "system":
            turns.append(("system", _signatures(self.tools)))
        asked = max(place for place, message in enumerate(self.messages) if message["role"] == "user")
        for place, message in enumerate(self.messages):
            role, text = message["role"], message["content"]
            if role == "system" and self.tools:
                turns.append((role, f"{text}\n\n{_signatures(self.tools)}"))
            elif role == "assistant":
                turns.append((role, _answer(message, keeps_thought=place > asked)))
            elif role == "tool":
                text = f"<tool_response>\n{text}\n</tool_response>"
                follows = self.messages[place - 1]["role"] == "tool"
                turns[-1:] = [("user", f"{turns[-1][1]}\n{text}")] if follows else [turns[-1], ("user", text)]
            else:
                turns.append((role, text))
        return turns


def _answer(message: Message, *, keeps_thought: bool) -> str:
    thought = message.get("reasoning_content", "") if keeps_thought else ""
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    text = "\n".join(part for part in (message["content"], *calls) if part)
    return f"<think>\n{thought}\n</think>\n\n{text}" if thought else text


def _signatures(tools: Sequence[Message]) -> str:
    return "\n".join(("<tools>", *map(_signature, tools), "</tools>"))


def _signature(tool: Message) -> str:
    function = tool["function"]
    schema = function["parameters"]
    parameters = ", ".join(
        f"{name}{'' if name in schema['required'] else '?'}: {_type(each)}"
        for name, each in schema["properties"].items()
    )
    about = f": {function['description']}" if "description" in function else ""
    return f"{function['name']}({parameters}){about}"


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(schema["enum"])
    return f"list of {schema['items']['type']}" if schema["type"] == "array" else str(schema["type"])
