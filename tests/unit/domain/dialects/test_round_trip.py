"""Calls that a chat template writes for an earlier turn are read back as the calls of that turn."""

# ruff: noqa: RUF001 - DeepSeek's marks are written in these characters

from __future__ import annotations

import json
from typing import Any

import pytest

from nanoserve.adapters.huggingface.template_language import compile_template
from nanoserve.domain.text.dialects.tokenized import choose_dialect
from nanoserve.ports.driven import DialectFacts
from tests.unit.domain.dialects.cases import FULL, ROME, STOP, TOOLS, Said, call, parsed, text

TURN = "{% for m in messages %}{% if m.tool_calls %}{{ m.content }}"
END = "{% endif %}{% endfor %}"
TEMPLATES = {
    "qwen3": TURN + "{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "{# <think> #}" + END,
    "qwen3-coder": TURN + "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
    + END,
    "glm-4.5": TURN + "{% for c in m.tool_calls %}\n<tool_call>{{ c.function.name }}\n"
    "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    + END,
    "minimax-m2": TURN + "\n<minimax:tool_call>\n{% for c in m.tool_calls %}"
    '<invoke name="{{ c.function.name }}">\n{% for k, v in c.function.arguments | items %}'
    '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}'
    "</minimax:tool_call>" + END,
    "kimi-k2": "{# <|im_middle|><|im_assistant|> #}"
    + TURN
    + "<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
    "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments + '' }}<|tool_call_end|>"
    "{% endfor %}<|tool_calls_section_end|>" + END,
    "deepseek-v3": TURN + "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}{{ '' if loop.first else '\\n' }}"
    "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ c.function.name + '\\n```json\\n' }}"
    "{{ c.function.arguments + '' }}{{ '\\n```' }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{# ```json #}"
    + END,
    "deepseek-v3.1": TURN + "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>"
    "{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments + '' }}<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜>" + END,
    "mistral": TURN + "[TOOL_CALLS] [{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}, "
    '"id": "{{ c.id if c.id | length == 9 else raise_exception("nine") }}"}{{ "]" if loop.last else ", " }}{% endfor %}'
    + END,
    "mistral-v11": TURN + "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]"
    '{{ c.id if c.id | length == 9 else raise_exception("nine") }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}'
    + END,
}


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "object"])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_what_a_template_writes_of_calls_is_read_back(name: str, as_text: bool) -> None:
    dialect = choose_dialect(DialectFacts(chat_template=TEMPLATES[name]))
    assert dialect is not None
    assert dialect.dialect.name == name
    said = (ROME, call("get_weather", FULL), STOP)
    calls = [_written(each, place, as_text=as_text) for place, each in enumerate(said)]
    turns: list[dict[str, Any]] = [{"role": "assistant", "content": "I look.", "tool_calls": calls}]
    rendered = compile_template(TEMPLATES[name]).render(messages=dialect.messages(turns))
    parser = dialect.parser(tools=TOOLS)
    assert parsed([*parser.push(rendered, [1]), *parser.close()]) == (text("I look."), *said)


def _written(said: Said, place: int, *, as_text: bool) -> dict[str, Any]:
    arguments = json.dumps(said.arguments) if as_text else said.arguments
    function = {"name": said.text, "arguments": arguments}
    return {"id": f"call_of_a_client_{place}", "type": "function", "function": function}
