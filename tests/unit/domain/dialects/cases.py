"""Answers in every dialect, as models of the families write them, and what they say."""

# ruff: noqa: RUF001 - DeepSeek's marks are written in these characters

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.parser import Parser
from nanoserve.ports.tool_calls import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    ReasoningDelta,
    TextDelta,
    Tool,
)

TOOLS: Final = (
    Tool(
        name="get_weather",
        description="The weather of a place",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    ),
    Tool(name="stop-all", parameters={"type": "object", "properties": {}}),
)


Write = Callable[..., str]
"""Calls, as pairs of a name and arguments, to text."""


@attrs.frozen
class Said:
    """One part of an answer: its kind, its text or the function's name, and a call's arguments."""

    kind: str
    text: str
    arguments: Any = None


def reasoning(text: str) -> Said:
    return Said("reasoning", text)


def text(text: str) -> Said:
    return Said("text", text)


def call(name: str, arguments: Any) -> Said:
    return Said("call", name, arguments)


@attrs.frozen
class Case:
    """An answer, and the end of the prompt that it follows."""

    dialect: str
    written: str
    said: tuple[Said, ...]
    prompt_tail: str = ""


ROME: Final = call("get_weather", {"city": "Rome"})
STOP: Final = call("stop-all", {})
TRICKY: Final = 'a "quoted" \\ {brace} </x> é 雨\n\tline'
FULL: Final = {
    "city": TRICKY,
    "days": 3,
    "exact": True,
    "place": {"lat": -1.5, "of": ["}", "]"]},
    "note": None,
}
HARMONY_TAIL: Final = "<|end|><|start|>assistant"


def _hermes(*calls: tuple[str, Any]) -> str:
    objects = [
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls
    ]
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _coder(name: str, arguments: dict[str, Any]) -> str:
    values = [f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in arguments.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(values)}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, Any]) -> str:
    pairs = [
        f"<arg_key>{key}</arg_key>\n<arg_value>{_value(value)}</arg_value>\n"
        for key, value in arguments.items()
    ]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def _minimax(*calls: tuple[str, dict[str, Any]]) -> str:
    written = ""
    for name, arguments in calls:
        values = [
            f'<parameter name="{key}">{_value(value)}</parameter>\n' for key, value in arguments.items()
        ]
        written += f'<invoke name="{name}">\n{"".join(values)}</invoke>\n'
    return f"<minimax:tool_call>\n{written}</minimax:tool_call>"


def _kimi(*calls: tuple[str, Any]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for place, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def _deepseek(*calls: tuple[str, Any]) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _deepseek31(*calls: tuple[str, Any]) -> str:
    written = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _mistral(*calls: tuple[str, Any]) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def _mistral11(*calls: tuple[str, Any]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def _granite(*calls: tuple[str, Any]) -> str:
    return "<|tool_call|>" + _mistral(*calls).removeprefix("[TOOL_CALLS]")


def _phi(*calls: tuple[str, Any]) -> str:
    return "functools" + _mistral(*calls).removeprefix("[TOOL_CALLS]")


def _llama(*calls: tuple[str, Any]) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)


def _harmony(name: str, arguments: Any) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"


def _each(write: Callable[[str, dict[str, Any]], str], between: str = "") -> Write:
    return lambda *calls: between.join(write(name, arguments) for name, arguments in calls)


def _pythonic(*calls: tuple[str, Any]) -> str:
    written = [
        f"{name}({', '.join(f'{key}={json.dumps(value) if isinstance(value, str | dict) else repr(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]
    return f"[{', '.join(written)}]"


WRITERS: Final[Mapping[str, Write]] = {
    "hermes": _hermes,
    "qwen3": _hermes,
    "qwen3-coder": _each(_coder, "\n"),
    "glm-4.5": _each(_glm, "\n"),
    "minimax-m2": _minimax,
    "kimi-k2": _kimi,
    "deepseek-v3": _deepseek,
    "deepseek-v3.1": _deepseek31,
    "mistral": _mistral,
    "mistral-v11": _mistral11,
    "granite": _granite,
    "phi-4-mini": _phi,
    "llama-json": _llama,
    "llama-pythonic": _pythonic,
    "gpt-oss": _each(_harmony),
}
"""How each family writes calls, as its chat template does."""

_STOP: Final[tuple[str, dict[str, Any]]] = ("stop-all", {})


def _cases(name: str) -> tuple[Case, ...]:
    """The cases in a file beside this one, one a line."""
    lines = pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return tuple(
        Case(**{**each, "said": tuple(Said(*part) for part in each["said"])})
        for each in map(json.loads, lines)
    )


MALFORMED: Final = _cases("malformed.jsonl")
"""Calls with the slips that models make, and what was meant."""


_OSLO: Final = ("get_weather", {"city": "Oslo, \u00d8st", "days": 0, "exact": False})
_PLACES: Final = ("get_weather", {"city": "", "place": {"lat": 1e-05, "in": [[], {}, [None, True, "a, b"]]}})
_NOTE: Final = ("get_weather", {"city": "C:\\dir 'x'", "note": "1. a\n2. b"})


def _regular() -> Iterable[Case]:
    """What each family writes for the same calls, with text around them where it may have some."""
    for name, write in WRITERS.items():
        tail = HARMONY_TAIL if name == "gpt-oss" else ""
        several = ((_OSLO, _STOP, _PLACES),) if name != "gpt-oss" else ()
        for calls in ((_OSLO,), (_PLACES,), (_NOTE,), (_STOP,), *several):
            yield Case(name, write(*calls), tuple(call(*each) for each in calls), tail)
        if name != "gpt-oss":
            yield Case(name, f"{write(_OSLO)}\n\nDone.", (call(*_OSLO), text("Done.")))
        if not name.startswith("llama") and name != "gpt-oss":
            yield Case(name, f"First: {write(_STOP)}", (text("First: "), STOP))


CASES: Final = (*_cases("answers.jsonl"), *_regular())


def name_of(each: Case) -> str:
    return f"{each.dialect}-{each.written[:24]!r}"


def parsed(events: Iterable[AnswerEvent]) -> tuple[Said, ...]:
    """What events say, once their order is found to be right."""
    said: list[Said] = []
    open_call = None
    arguments = ""
    for event in events:
        if isinstance(event, CallBegun):
            assert open_call is None
            assert event.index == sum(each.kind == "call" for each in said)
            open_call, arguments = event, ""
        elif isinstance(event, ArgumentsDelta):
            assert open_call is not None
            assert event.index == open_call.index
            assert event.text
            arguments += event.text
        elif isinstance(event, CallEnded):
            assert open_call is not None
            assert event.index == open_call.index
            said.append(call(open_call.name, _read(arguments)))
            open_call = None
        else:
            assert open_call is None
            assert event.text
            kind = "reasoning" if isinstance(event, ReasoningDelta) else "text"
            assert isinstance(event, (ReasoningDelta, TextDelta))
            if said and said[-1].kind == kind:
                said[-1] = Said(kind, said[-1].text + event.text)
            else:
                said.append(Said(kind, event.text))
    assert open_call is None
    return tuple(said)


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def parse(case: Case, cuts: Sequence[int] = (), *, tokens: frozenset[str] = frozenset()) -> list[AnswerEvent]:
    """The events of a case that comes in pieces; marks among `tokens` come as control tokens of their own."""
    parser = Parser(DIALECTS[case.dialect], tools=TOOLS, prompt_tail=case.prompt_tail, tokens=tokens)
    events: list[AnswerEvent] = []
    for piece, is_token in pieces(case.written, cuts, tokens):
        events += parser.feed(piece, is_token=is_token)
    return events + parser.close()


def pieces(written: str, cuts: Sequence[int], tokens: frozenset[str]) -> Iterable[tuple[str, bool]]:
    """A text cut at places, and around every token in it."""
    marked: dict[int, str] = {}
    for mark in tokens:
        start = written.find(mark)
        while start >= 0:
            marked[start] = mark
            start = written.find(mark, start + len(mark))
    inside = {place for start, mark in marked.items() for place in range(start + 1, start + len(mark))}
    edges = {0, len(written), *marked, *(start + len(mark) for start, mark in marked.items())}
    places = sorted((edges | {cut for cut in cuts if cut < len(written)}) - inside)
    for start, end in itertools.pairwise(places):
        yield written[start:end], start in marked
