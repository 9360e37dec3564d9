"""What the protocols refuse by name, and what asks for nothing else than is the case."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.entrypoints.server.protocols.dialects import DIALECTS, USER, Json
from tests.unit.entrypoints.server.protocols.protocol_world import CONTEXT, HTTP, World

Refused = list[tuple[Json, str]]
RESPONSES: Refused = [
    ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"truncation": "some"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"n": 2}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"logprobs": True}, "logprobs"),
    ({"request_id": "mine"}, "request_id"),
    ({"stop": [""]}, "stop"),
    ({"stop_token_ids": [31]}, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"cache_salt": "s" * 257}, "cache_salt"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"user": "x" * 513}, "user"),
    ({"background": True, "stream": True}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
]
RESPONSES_HARMLESS: list[Json] = [
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "max_tool_calls": 3},
    {"reasoning": {"effort": None}, "text": {"format": {"type": "text"}, "verbosity": "medium"}},
    {"reasoning": {"effort": "none"}, "service_tier": "auto", "include": [], "truncation": "disabled"},
    {"prompt_cache_key": "k", "safety_identifier": "s", "stream_options": {}, "n": 1, "best_of": 1},
    {"metadata": None, "store": None, "stream": None, "background": False, "top_k": 3, "min_p": 0.1},
    {"something": "new"},
]
MESSAGES: Refused = [
    ({"tools": [{"name": "f", "input_schema": {}}]}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"output_config": {"effort": "high"}}, "output_config"),
    ({"output_format": {"type": "json_schema"}}, "output_format"),
    ({"context_management": {"edits": []}}, "context_management"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ({"speed": "fast"}, "speed"),
    ({"container": "c"}, "container"),
    ({"diagnostics": {}}, "diagnostics"),
    ({"inference_geo": "us"}, "inference_geo"),
    ({"service_tier": "batch"}, "service_tier"),
    ({"metadata": {"user_id": "x" * 513}}, "metadata.user_id"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_k": "x"}, "top_k"),
    ({"n": 2}, "n"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER[0], {"role": "assistant", "content": "The"}]}, "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
]
MESSAGES_HARMLESS: list[Json] = [
    {"tools": [], "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}, "output_config": {}},
    {"service_tier": "auto", "metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}, "n": 1},
    {"stop_sequences": [], "system": "", "stream": False, "something": "new"},
]
OLLAMA: Refused = [
    ({"format": "json"}, "format"),
    ({"format": {"type": "object"}}, "format"),
    ({"think": True}, "think"),
    ({"think": "high"}, "think"),
    ({"truncate": True}, "truncate"),
    ({"shift": True}, "shift"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"num_predict": 0}}, "options.num_predict"),
    ({"options": {"num_predict": -3}}, "options.num_predict"),
    ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
    ({"options": {"num_ctx": CONTEXT + 1}}, "options.num_ctx"),
    ({"options": {"num_ctx": 0}}, "options.num_ctx"),
    ({"options": {"mirostat": 1}}, "options.mirostat"),
    ({"options": {"typical_p": 0.5}}, "options.typical_p"),
    ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
    ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
    ({"options": {"penalize_newline": False}}, "options.penalize_newline"),
    ({"options": {"n": 2}}, "options.n"),
    ({"options": {"stop": [""]}}, "options.stop"),
    ({"options": {"stop_token_ids": [31]}}, "stop_token_ids"),
    ({"options": {"top_k": "x"}}, "options.top_k"),
    ({"options": 5}, "options"),
    ({"model": None}, "model"),
]
GENERATE: Refused = [
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"suffix": "end"}, "suffix"),
    ({"images": ["iVBORw0KGgo="]}, "images"),
    ({"raw": True, "system": "be brief"}, "system"),
    ({"raw": True, "context": [1]}, "context"),
    ({"context": [31]}, "prompt"),
]
OLLAMA_CHAT: Refused = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": [{"role": "user", "content": "x", "images": ["a"]}]}, "messages[0].images"),
    ({"messages": [{**USER[0], "tool_calls": [{"function": {}}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"content": "x"}]}, "messages"),
]
OLLAMA_HARMLESS: list[Json] = [
    {"keep_alive": "5m", "think": False, "format": "", "truncate": False, "shift": False, "logprobs": False},
    {
        "keep_alive": -1,
        "options": {"num_ctx": 128, "num_batch": 8, "num_gpu": 1, "numa": False, "use_mmap": True},
    },
    {"options": {"mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0, "repeat_last_n": -1, "num_thread": 4}},
    {"options": {"something": "new"}, "something": "new"},
]
TABLES = {
    "responses": (RESPONSES, RESPONSES_HARMLESS),
    "messages": (MESSAGES, MESSAGES_HARMLESS),
    "generate": (OLLAMA + GENERATE, [*OLLAMA_HARMLESS, {"system": "", "raw": False, "images": []}]),
    "ollama-chat": (OLLAMA + OLLAMA_CHAT, [*OLLAMA_HARMLESS, {"tools": []}]),
}


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [(name, *each) for name, (refused, _) in TABLES.items() for each in refused],
)
def test_a_bad_field_is_refused_by_name(world: World, name: str, fields: Json, param: str) -> None:
    before = len(world.engine.requests)
    dialect = DIALECTS[name]
    answer = HTTP.post(world.url + dialect.path, json={**_short(name), **fields})
    assert answer.status_code == 400, answer.text
    error: Any = answer.json()["error"]
    if name == "responses":
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert dialect.error(answer.json()).startswith(param)
    assert len(world.engine.requests) == before


@pytest.mark.parametrize(
    ("name", "fields"), [(name, each) for name, (_, harmless) in TABLES.items() for each in harmless]
)
def test_a_field_that_asks_for_nothing_else_is_taken(world: World, name: str, fields: Json) -> None:
    body = _short(name)
    if "options" in fields:
        fields = {**fields, "options": {**body["options"], **fields["options"]}}
    answer = HTTP.post(world.url + DIALECTS[name].path, json={**body, **fields})
    assert answer.status_code == 200, answer.text


def _short(name: str) -> Json:
    return {"model": "scripted", **DIALECTS[name].ask(stream=False, max_tokens=2)}
