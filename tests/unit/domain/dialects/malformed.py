"""Calls with the slips that models make, and what was meant."""

# ruff: noqa: RUF001 - DeepSeek's marks are written in these characters

from __future__ import annotations

from typing import Final

from tests.unit.domain.dialects.cases import HARMONY_TAIL, ROME, STOP, Case, call, case, reasoning

DAYS: Final = call("get_weather", {"city": "Rome", "days": 3})


def _hermes(written: str) -> str:
    return f"<tool_call>\n{written}\n</tool_call>"


def _named(arguments: str) -> str:
    return _hermes(f'{{"name": "get_weather", "arguments": {arguments}}}')


def _coder(elements: str, end: str = "\n</function>\n</tool_call>") -> str:
    return f"<tool_call>\n<function=get_weather>\n{elements}{end}"


def _typed(key: str, value: str) -> str:
    return _coder(f"<parameter=city>\nRome\n</parameter>\n<parameter={key}>\n{value}\n</parameter>")


def _rome(**more: object) -> object:
    return call("get_weather", {"city": "Rome", **more})


MALFORMED: Final[tuple[Case, ...]] = (
    # quotes, constants, numbers
    case("hermes", _hermes("{'name': 'get_weather', 'arguments': {'city': 'Rome', 'days': 3}}"), DAYS),
    case(
        "hermes",
        _named("{'city': 'Rome', 'exact': True}"),
        call("get_weather", {"city": "Rome", "exact": True}),
    ),
    case(
        "hermes",
        _named('{"city": "Rome", "exact": False, "note": None}'),
        call("get_weather", {"city": "Rome", "exact": False, "note": None}),
    ),
    case("hermes", _named('{city: "Rome", days: 3}'), DAYS),
    case("hermes", _named('{"city": Rome, "days": 3}'), DAYS),
    case("hermes", _named('{"city": "Rome", "days": 003}'), DAYS),
    case("hermes", _named('{"city": "Rome", "days": +3}'), DAYS),
    case(
        "hermes", _named('{"city": "Rome", "days": NaN}'), call("get_weather", {"city": "Rome", "days": None})
    ),
    case(
        "hermes",
        _named('{"city": "Rome", "place": {"lat": .5, "lon": 1., "alt": 1e999}}'),
        call("get_weather", {"city": "Rome", "place": {"lat": 0.5, "lon": 1.0, "alt": None}}),
    ),
    # commas and brackets
    case("hermes", _named('{"city": "Rome", "days": 3,}'), DAYS),
    case("hermes", _hermes('{"name": "get_weather", "arguments": {"city": "Rome", "days": 3},}'), DAYS),
    case("hermes", _named('{"city": "Rome" "days": 3}'), DAYS),
    case("hermes", _named('{"city": "Rome",, "days": 3}'), DAYS),
    case(
        "hermes",
        _named('{"place": {"of": [1, 2,], "lat": 1,}, "city": "Rome",\n}'),
        call("get_weather", {"place": {"of": [1, 2], "lat": 1}, "city": "Rome"}),
    ),
    case("hermes", _hermes('{"name": "get_weather", "arguments": {"city": "Rome"}'), ROME),
    case("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"\n</tool_call>', ROME),
    case("hermes", _hermes('{"name": "get_weather", "arguments": {"city": "Rome"}}}'), ROME),
    case(
        "hermes",
        _named('{"place": {"of": [1, 2}, "city": "Rome"}'),
        call("get_weather", {"place": {"of": [1, 2]}, "city": "Rome"}),
    ),
    case("hermes", _hermes('{{"name": "get_weather", "arguments": {"city": "Rome"}}}'), ROME),
    case("hermes", _named('{{"city": "Rome"}}'), ROME),
    # strings
    case(
        "hermes",
        _named('{"city": "Rome", "note": "a\nb\tc"}'),
        call("get_weather", {"city": "Rome", "note": "a\nb\tc"}),
    ),
    case(
        "hermes",
        _named('{"city": "Rome", "note": "it\\\'s \\d+"}'),
        call("get_weather", {"city": "Rome", "note": "it's \\d+"}),
    ),
    case(
        "hermes",
        _named("{'city': 'Rome', 'note': 'say \"hi\"'}"),
        call("get_weather", {"city": "Rome", "note": 'say "hi"'}),
    ),
    case("hermes", _named('"{\\"city\\": \\"Rome\\", \\"days\\": 3}"'), DAYS),
    case("hermes", _named('\'{"city": "Rome", "days": 3}\''), DAYS),
    case("hermes", _named("\"{'city': 'Rome', 'days': 3}\""), DAYS),
    # keys and places
    case("hermes", _hermes('{"name": "get_weather", "parameters": {"city": "Rome"}}'), ROME),
    case("hermes", _hermes('{"function": "get_weather", "args": {"city": "Rome"}}'), ROME),
    case("hermes", _hermes('{"tool_name": "get_weather", "input": {"city": "Rome"}}'), ROME),
    case(
        "hermes",
        _hermes('{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}'),
        ROME,
    ),
    case(
        "hermes",
        _hermes(
            '{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}'
        ),
        ROME,
    ),
    case("hermes", _hermes('```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'), ROME),
    case(
        "hermes",
        _hermes(
            '[{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name": "stop-all", "arguments": {}}]'
        ),
        ROME,
        STOP,
    ),
    case(
        "hermes",
        _hermes(
            '{"name": "get_weather", "arguments": {"city": "Rome"}}\n{"name": "stop-all", "arguments": {}}'
        ),
        ROME,
        STOP,
    ),
    case("hermes", "<tool_call>\n" + _named('{"city": "Rome"}'), ROME),
    case(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n<tool_call>\n{"name": "stop-all", "arguments": {}}\n</tool_call>',
        ROME,
        STOP,
    ),
    case(
        "qwen3",
        "<think>\nI call.\n<tool_call></think>\n" + _named('{"city": "Rome"}'),
        reasoning("I call.\n<tool_call>"),
        ROME,
    ),
    # the answer ends
    case("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3', DAYS),
    case("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "no', ROME),
    case(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro\\',
        call("get_weather", {"city": "Ro"}),
    ),
    case(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "exact": tr',
        call("get_weather", {"city": "Rome", "exact": True}),
    ),
    case("qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome", ROME),
    case(
        "qwen3-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n",
        ROME,
    ),
    case(
        "glm-4.5",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>da",
        ROME,
    ),
    case(
        "minimax-m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>',
        ROME,
    ),
    case(
        "kimi-k2",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Rome"',
        ROME,
    ),
    case(
        "deepseek-v3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome", "days"',
        ROME,
    ),
    case("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"', ROME),
    case("mistral-v11", '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"', ROME),
    case("llama-json", '{"name": "get_weather", "parameters": {"city": "Rome"', ROME),
    case(
        "llama-pythonic",
        "[get_weather(city='Rome', place={'of': [1",
        call("get_weather", {"city": "Rome", "place": {"of": [1]}}),
    ),
    case(
        "gpt-oss",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"',
        ROME,
        prompt_tail=HARMONY_TAIL,
    ),
    # elements
    case("qwen3-coder", _coder("<parameter=city>\nRome\n<parameter=days>\n3\n</parameter>"), DAYS),
    case("qwen3-coder", _coder("<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3"), DAYS),
    case(
        "qwen3-coder",
        _coder("<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>", "\n</tool_call>"),
        DAYS,
    ),
    case(
        "qwen3-coder",
        _typed("place", "{'of': ['a', \"b\",], 'lat': .5}"),
        call("get_weather", {"city": "Rome", "place": {"of": ["a", "b"], "lat": 0.5}}),
    ),
    case("qwen3-coder", _typed("days", "007"), call("get_weather", {"city": "Rome", "days": 7})),
    case("qwen3-coder", _typed("exact", "TRUE"), call("get_weather", {"city": "Rome", "exact": True})),
    case(
        "glm-4.5",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        DAYS,
    ),
    case(
        "minimax-m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        DAYS,
    ),
    # other dialects
    case("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}},]', ROME),
    case("mistral", "[TOOL_CALLS] [{'name': 'get_weather', 'arguments': {'city': 'Rome'}}]", ROME),
    case("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}', ROME),
    case("mistral-v11", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}]', ROME),
    case("mistral-v11", "[TOOL_CALLS]get_weather[ARGS]{'city': 'Rome', 'days': 3,}", DAYS),
    case("granite", "<|tool_call|>[{'name': 'get_weather', 'arguments': {'city': 'Rome'}}]", ROME),
    case(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name": "stop-all"}',
        ROME,
        STOP,
    ),
    case("phi-4-mini", 'functools[{"name": "get_weather", "arguments": {"city": "Rome"}', ROME),
    case(
        "deepseek-v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```\n{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ROME,
    ),
    case(
        "deepseek-v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n{"city": "Rome",}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ROME,
    ),
    case(
        "kimi-k2",
        '<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{"city": "Rome",}<|tool_call_end|>',
        ROME,
    ),
    case(
        "llama-json",
        '{"name": "get_weather", "parameters": {"city": "Rome"}}\n{"name": "stop-all", "parameters": {}}',
        ROME,
        STOP,
    ),
    case(
        "llama-json",
        '{"name": "get_weather", "parameters": {"city": "Rome"}};{"name": "stop-all", "parameters": {}}',
        ROME,
        STOP,
    ),
    case("llama-json", '```json\n{"name": "get_weather", "parameters": {"city": "Rome"}}\n```', ROME),
    case("llama-json", "<|python_tag|>{'name': 'get_weather', 'parameters': {'city': 'Rome'}}", ROME),
    case(
        "llama-json",
        '{"name": "get_weather", "parameters": {"city": "Rome"}; {"name": "stop-all", "parameters": {}}',
        ROME,
        STOP,
    ),
    case("llama-json", '{"name": "get_weather", "parameters": {"city": "Rome"}}}', ROME),
    case(
        "llama-pythonic",
        "[get_weather(city='Rome', days=1e999)]",
        call("get_weather", {"city": "Rome", "days": None}),
    ),
    case(
        "llama-pythonic",
        "[get_weather(city='Rome', days=NaN, place={'lat': -Infinity})]",
        call("get_weather", {"city": "Rome", "days": None, "place": {"lat": None}}),
    ),
    case("llama-pythonic", "[get_weather(city='Rome', days=03,), stop-all()", DAYS, STOP),
    case("llama-pythonic", "```python\n[get_weather(city='Rome')]\n```", ROME),
    case("llama-pythonic", '{"name": "get_weather", "parameters": {"city": "Rome"}}', ROME),
    case(
        "gpt-oss",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{'city': 'Rome', 'days': 3,}<|call|>",
        DAYS,
        prompt_tail=HARMONY_TAIL,
    ),
    case(
        "gpt-oss",
        '<|channel|>commentary to=get_weather<|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        ROME,
        prompt_tail=HARMONY_TAIL,
    ),
)
