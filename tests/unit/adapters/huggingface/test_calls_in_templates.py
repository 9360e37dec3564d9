"""Calls that a chat template writes for an earlier turn are read back as the calls of that turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nanoserve.adapters.huggingface.template_process import compile_template
from nanoserve.domain.text.dialects.tokenized import choose_dialect
from nanoserve.ports.driven import DialectFacts
from tests.unit.adapters.huggingface.conftest import templates
from tests.unit.domain.dialects.cases import FULL, ROME, STOP, TOOLS, Said, call, parsed, text

TEMPLATES = templates("calls")


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
