"""Answers in every dialect, as models of the families write them, and what they say."""

# ruff: noqa: RUF001 - DeepSeek's marks are written in these characters

from __future__ import annotations

import itertools
import json
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


def case(dialect: str, written: str, *said: Said, prompt_tail: str = "") -> Case:
    return Case(dialect, written, said, prompt_tail)


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

_ROME: Final = ("get_weather", {"city": "Rome"})
_STOP: Final[tuple[str, dict[str, Any]]] = ("stop-all", {})
_FULL: Final = ("get_weather", FULL)
_ANALYSIS: Final = "<|channel|>analysis<|message|>It rains.<|end|><|start|>assistant"

CASES: tuple[Case, ...] = (
    case("hermes", "Hello.", text("Hello.")),
    case("hermes", "a < b and <tool_cal", text("a < b and <tool_cal")),
    case("hermes", _hermes(_ROME), ROME),
    case("hermes", _hermes(_FULL, _STOP), call("get_weather", FULL), STOP),
    case("hermes", f"I look.\n\n{_hermes(_ROME)}\n", text("I look."), ROME),
    case("hermes", f"{_hermes(_ROME)}\nDone.", ROME, text("Done.")),
    case("hermes", '<tool_call>{"arguments":{"city":"Rome"},"name":"get_weather"}</tool_call>', ROME),
    case("hermes", '<tool_call>{"name":"stop-all"}</tool_call>', STOP),
    case("hermes", '<tool_call>{"name":"stop-all","arguments":null}</tool_call>', STOP),
    case(
        "hermes", '<tool_call>{"name":"get_weather","arguments":"{\\"city\\": \\"Rome\\"}"}</tool_call>', ROME
    ),
    case("hermes", "<tool_call>\nno JSON\n</tool_call>!", text("no JSON!")),
    case("glm-4.5", "So</think>\n\nYes.", text("So\n\nYes.")),
    case("qwen3", "<think>\nHm.\n</think>\n\nYes.", reasoning("Hm."), text("Yes.")),
    case("qwen3", "<think>\n\n</think>\n\nYes.", text("Yes.")),
    case(
        "qwen3", "Hm.\n</think>\n\nYes.", reasoning("Hm."), text("Yes."), prompt_tail="assistant\n<think>\n"
    ),
    case("qwen3", "Yes.", text("Yes."), prompt_tail="assistant\n<think>\n\n</think>\n\n"),
    case("qwen3", f"<think>\nHm.\n</think>\n\n{_hermes(_ROME, _ROME)}", reasoning("Hm."), ROME, ROME),
    case("qwen3", "<think>never ends", reasoning("never ends")),
    case("qwen3-coder", _coder(*_ROME), ROME),
    case(
        "qwen3-coder",
        f"I look.\n{_coder(*_FULL)}\n{_coder(*_STOP)}",
        text("I look."),
        call("get_weather", FULL),
        STOP,
    ),
    case(
        "qwen3-coder",
        "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        ROME,
    ),
    case(
        "qwen3-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\nmany\n</parameter>\n<parameter=new>\n1\n</parameter>\n"
        "</function>\n</tool_call>",
        call("get_weather", {"days": "many", "new": "1"}),
    ),
    case(
        "qwen3-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n\nRome\n\n</parameter>\n</function>\n</tool_call>",
        call("get_weather", {"city": "\nRome\n"}),
    ),
    case(
        "glm-4.5",
        f"\n<think>Hm.</think>\nI look.\n{_glm(*_ROME)}\n{_glm(*_STOP)}",
        reasoning("Hm."),
        text("I look."),
        ROME,
        STOP,
    ),
    case("glm-4.5", _glm(*_FULL), call("get_weather", FULL)),
    case(
        "glm-4.5",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        ROME,
    ),
    case("minimax-m2", _minimax(_FULL, _STOP), call("get_weather", FULL), STOP),
    case(
        "minimax-m2",
        f"Hm.\n</think>\n\n{_minimax(_ROME)}",
        reasoning("Hm."),
        ROME,
        prompt_tail="]~b]ai\n<think>\n",
    ),
    case("kimi-k2", _kimi(_ROME, _FULL), ROME, call("get_weather", FULL)),
    case("kimi-k2", f"<think>Hm.</think>I look.{_kimi(_ROME)}", reasoning("Hm."), text("I look."), ROME),
    case(
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\n"
        '<|tool_call_argument_begin|> {"city": "Rome"} <|tool_call_end|><|tool_calls_section_end|>',
        ROME,
    ),
    case(
        "deepseek-v3", f"I look.{_deepseek(_FULL, _STOP)}", text("I look."), call("get_weather", FULL), STOP
    ),
    case(
        "deepseek-v3",
        f"Hm.\n</think>\n\n{_deepseek(_ROME)}",
        reasoning("Hm."),
        ROME,
        prompt_tail="<｜Assistant｜><think>\n",
    ),
    case("deepseek-v3.1", _deepseek31(_FULL, _ROME), call("get_weather", FULL), ROME),
    case("deepseek-v3.1", "Yes.", text("Yes."), prompt_tail="<｜Assistant｜></think>"),
    case("deepseek-r1", "<think>\nHm.\n</think>\n\nYes.", reasoning("Hm."), text("Yes.")),
    case("mistral", _mistral(_FULL, _STOP), call("get_weather", FULL), STOP),
    case("mistral", f"I look.{_mistral(_ROME)}", text("I look."), ROME),
    case("mistral", '[TOOL_CALLS] {"name": "get_weather", "arguments": {"city": "Rome"}}', ROME),
    case(
        "mistral-v11", f"I look.{_mistral11(_FULL, _STOP)}", text("I look."), call("get_weather", FULL), STOP
    ),
    case("mistral-v11", '[TOOL_CALLS]get_weather{"city": "Rome"}[TOOL_CALLS]stop-all{}', ROME, STOP),
    case(
        "mistral-v11",
        '[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Rome"}',
        reasoning("Hm."),
        ROME,
    ),
    case("llama-json", _llama(_ROME), ROME),
    case("llama-json", f"<|python_tag|>{_llama(_FULL, _STOP)}", call("get_weather", FULL), STOP),
    case("llama-json", '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}', ROME),
    case(
        "llama-json", '{"name": "unknown", "parameters": {}}', text('{"name": "unknown", "parameters": {}}')
    ),
    case("llama-json", '\n{"answer": 42}', text('\n{"answer": 42}')),
    case(
        "llama-json",
        'So: {"name": "get_weather", "parameters": {}}',
        text('So: {"name": "get_weather", "parameters": {}}'),
    ),
    case("llama-pythonic", "[get_weather(city='Rome'), stop-all()]", ROME, STOP),
    case(
        "llama-pythonic",
        '[get_weather(city="it\\\'s \\"1\\"\\n\\u00e9", days=3, exact=True, place={"lat": -1.5, "of": [1, \'x\']}, note=None)]',
        call(
            "get_weather",
            {
                "city": 'it\'s "1"\né',
                "days": 3,
                "exact": True,
                "place": {"lat": -1.5, "of": [1, "x"]},
                "note": None,
            },
        ),
    ),
    case("granite", '<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Rome"}}]', ROME),
    case(
        "granite",
        '<tool_call> [{"arguments": {"city": "Rome"}, "name": "get_weather"}, {"name": "stop-all", "arguments": {}}]',
        ROME,
        STOP,
    ),
    case("granite", '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Rome"}}', ROME),
    case(
        "granite",
        f"I look.\n{_granite(_FULL)}\nDone.",
        text("I look."),
        call("get_weather", FULL),
        text("Done."),
    ),
    case("phi-4-mini", 'functools[{"name": "get_weather", "arguments": {"city": "Rome"}}]', ROME),
    case(
        "phi-4-mini",
        'Let me see.\nfunctools[\n  {"name": "get_weather", "arguments": {"city": "Rome"}},\n  {"name": "stop-all", "arguments": {}}\n]\nWell?',
        text("Let me see."),
        ROME,
        STOP,
        text("Well?"),
    ),
    case("phi-4-mini", "import functools as f", text("import functools as f")),
    case("llama-pythonic", "<|python_start|>[get_weather(city='Rome')]<|python_end|>", ROME),
    case("llama-pythonic", "<|python_start|>[get_weather(city='Rome'), stop-all()]", ROME, STOP),
    case(
        "llama-pythonic",
        "I look.<|python_start|>[get_weather(city='Rome')]<|python_end|>",
        text("I look."),
        ROME,
    ),
    case("llama-pythonic", "[1] is a footnote", text("[1] is a footnote")),
    case("llama-pythonic", "[unknown(a=1)]", text("[unknown(a=1)]")),
    case("gpt-oss", "<|channel|>final<|message|>Yes.", text("Yes."), prompt_tail=HARMONY_TAIL),
    case(
        "gpt-oss",
        f"{_ANALYSIS}<|channel|>final<|message|>Yes.<|return|>",
        reasoning("It rains."),
        text("Yes."),
        prompt_tail=HARMONY_TAIL,
    ),
    case(
        "gpt-oss",
        _ANALYSIS + _harmony(*_FULL),
        reasoning("It rains."),
        call("get_weather", FULL),
        prompt_tail=HARMONY_TAIL,
    ),
    case(
        "gpt-oss",
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{_harmony(*_ROME)}<|start|>assistant{_harmony(*_STOP)}",
        text("I look."),
        ROME,
        STOP,
        prompt_tail=HARMONY_TAIL,
    ),
    case(
        "gpt-oss",
        '<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Rome"}<|call|>',
        ROME,
        prompt_tail=HARMONY_TAIL,
    ),
    case("gpt-oss", "No marks.", text("No marks."), prompt_tail=HARMONY_TAIL),
    case("gpt-oss", "es.", text("es."), prompt_tail="<|start|>assistant<|channel|>final<|message|>Y"),
)


_OSLO: Final = ("get_weather", {"city": "Oslo, \u00d8st", "days": 0, "exact": False})
_PLACES: Final = ("get_weather", {"city": "", "place": {"lat": 1e-05, "in": [[], {}, [None, True, "a, b"]]}})
_NOTE: Final = ("get_weather", {"city": "C:\\dir 'x'", "note": "1. a\n2. b"})


def _regular() -> Iterable[Case]:
    """What each family writes for the same calls, with text around them where it may have some."""
    for name, write in WRITERS.items():
        tail = HARMONY_TAIL if name == "gpt-oss" else ""
        several = ((_OSLO, _STOP, _PLACES),) if name != "gpt-oss" else ()
        for calls in ((_OSLO,), (_PLACES,), (_NOTE,), (_STOP,), *several):
            yield case(name, write(*calls), *(call(*each) for each in calls), prompt_tail=tail)
        if name != "gpt-oss":
            yield case(name, f"{write(_OSLO)}\n\nDone.", call(*_OSLO), text("Done."))
        if not name.startswith("llama") and name != "gpt-oss":
            yield case(name, f"First: {write(_STOP)}", text("First: "), STOP)


CASES += tuple(_regular())


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
