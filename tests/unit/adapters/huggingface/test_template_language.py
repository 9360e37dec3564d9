from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from nanoserve.adapters.huggingface.chat_template import plain_messages
from nanoserve.adapters.huggingface.template_process import compile_template
from tests.unit.adapters.huggingface.conftest import templates

FAMILIES = templates("families")
"""The published families' ways of writing templates, in small."""
FEATURES = [
    "{{ messages | tojson }}",
    "{{ messages | tojson(indent=2, sort_keys=true) }}",
    "{{ messages | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "{{ dict(a=1, b=messages[0].role) | tojson }}{{ dict.fromkeys(['x', 'y'], 0) }}",
    "{% set ns = namespace(self=1, n=[]) %}{% set ns.n = ns.n + [2] %}{{ ns.n }}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{{ unknown }}|{{ tools is none }}|{{ documents is none }}|{{ bos_token }}|{{ pad_token is defined }}",
    "  {% if true %}\n  kept  \n  {% endif %}\n{{ '<&>' }}\n",
    "{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
]
REFUSED = [
    "{{ raise_exception('no') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({}) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ dict.mro() }}",
    "{% set ns = namespace(_x=1) %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{% generation %}",
]
TOKENS: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
TEXTS = st.text() | st.sampled_from(
    ["stop", "<think>\nhm\n</think>\n\nYes", "<tool_response>1</tool_response>", " \n"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS},
        optional={
            "reasoning_content": TEXTS,
            "thinking": TEXTS,
            "reasoning": TEXTS,
            "tool_calls": st.just(
                [{"function": {"name": "f", "arguments": {"a": "<&'ü>", "b": [1.5, None, True]}}}]
            ),
        },
    ),
    min_size=1,
    max_size=5,
)


def _reference(source: str, messages: list[dict[str, Any]], prompt: bool) -> str | type[Exception]:
    render: Any = render_jinja_template
    try:
        texts, _ = render([messages], chat_template=source, add_generation_prompt=prompt, **TOKENS)
    except Exception as error:  # noqa: BLE001 - which error it is, is compared
        return type(error)
    return str(texts[0])


def _ours(source: str, messages: list[dict[str, Any]], prompt: bool) -> str | type[Exception]:
    variables = {"messages": plain_messages(messages), "tools": None, "documents": None, **TOKENS}
    try:
        return compile_template(source).render(add_generation_prompt=prompt, **variables)
    except Exception as error:  # noqa: BLE001 - which error it is, is compared
        return type(error)


@pytest.mark.parametrize("source", [*FAMILIES.values(), *FEATURES], ids=[*FAMILIES, *FEATURES])
@settings(max_examples=60, deadline=None)
@given(messages=MESSAGES, prompt=st.booleans())
def test_templates_render_as_in_transformers(
    source: str, messages: list[dict[str, Any]], prompt: bool
) -> None:
    assert _ours(source, messages, prompt) == _reference(source, messages, prompt)


@pytest.mark.parametrize("source", REFUSED)
def test_what_transformers_refuses_is_refused(source: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    refused = _ours(source, messages, True)
    assert refused == _reference(source, messages, True)
    assert isinstance(refused, type)
    assert issubclass(refused, TemplateError | SecurityError)
