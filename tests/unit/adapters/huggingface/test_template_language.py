from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from nanoserve.adapters.huggingface.messages import plain_messages
from nanoserve.adapters.huggingface.template_language import compile_template

# The published families' ways of writing templates, in small.
FAMILIES = {
    "llama 2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate!') }}{% endif %}
{% if loop.index0 == 0 and system_message %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% endfor %}""",
    "llama 3": """{%- set date_string = strftime_now("%Y") if strftime_now is defined else "2024" %}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{{- "<|start|>system<|end|>\n\nToday: " + date_string + "\n" }}
{%- if not tools is none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}{%- endif %}
{%- for message in messages %}{%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
{{- '<|start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' }}
{%- elif 'tool_calls' in message %}{%- set call = message.tool_calls[0].function %}{{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
{%- endif %}{%- endfor %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}{%- set ns = namespace(index=0) %}
{%- for message in loop_messages if message.role != "tool" %}{%- set ns.index = ns.index + 1 %}
{%- if message.role == "user" and loop.last and system_message is defined %}{{- "[INST]" + system_message + "\n\n" + message.content + "[/INST]" }}
{%- else %}{{- ns.index ~ message.content + eos_token }}{%- endif %}{%- endfor %}""",
    "qwen": """{%- macro shown(content) %}{%- if content is string %}{{- content }}{%- else %}{%- for item in content %}{{- item.text }}{%- endfor %}{%- endif %}{%- endmacro %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set reasoning = '' %}{%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in message.content %}{%- set reasoning = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\n' }}{%- if loop.index0 > ns.last_query_index %}{{- '<think>' + reasoning.strip('\n') + '</think>' }}{%- endif %}{{- shown(message.content) + '<|im_end|>' + '\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}{%- endif %}""",
    "gemma": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
    {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
  {# a comment #}
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- continue %}{%- endif %}{%- if message['content'] == 'stop' %}{% break %}{%- endif %}
{%- generation %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endgeneration %}{%- endfor %}""",
}
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
