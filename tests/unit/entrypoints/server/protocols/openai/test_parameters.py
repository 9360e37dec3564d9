from __future__ import annotations

from typing import Any

import httpx
import pytest

from nanoserve.ports.request import Request
from tests.unit.entrypoints.server.protocols.openai.serving import Serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT: dict[str, Any] = {"prompt": "hello"}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
Each = tuple[str, dict[str, Any]]
EACH: list[Each] = [(COMPLETIONS, PROMPT), (CHAT, MESSAGES)]

HONOURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 3}, {"max_tokens": 3}),
    ({"max_completion_tokens": 4}, {"max_tokens": 4}),
    ({"max_completion_tokens": 4, "max_tokens": 4}, {"max_tokens": 4}),
    ({"min_tokens": 2, "max_tokens": 3}, {"min_tokens": 2}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"temperature": 1}, {"temperature": 1.0}),
    ({"top_p": 0.5, "top_k": 7, "min_p": 0.1}, {"top_p": 0.5, "top_k": 7, "min_p": 0.1}),
    ({"top_k": -1}, {"top_k": -1}),
    ({"presence_penalty": -1.5}, {"presence_penalty": -1.5}),
    ({"frequency_penalty": 2}, {"frequency_penalty": 2}),
    ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ({"n": 2, "best_of": 2}, {"n": 2}),
    ({"stop": "x"}, {"stop": ("x",)}),
    ({"stop": ["x", "yz"]}, {"stop": ("x", "yz")}),
    ({"stop_token_ids": [4]}, {"stop_token_ids": (4,)}),
    ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"logit_bias": {"3": -100, "1": 5.5}}, {"logit_bias": ((1, 5.5), (3, -100.0))}),
    ({"allowed_token_ids": [1, 2]}, {"allowed_token_ids": (1, 2)}),
    ({"bad_words": ["no"]}, {"bad_words": ("no",)}),
    ({"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
]
IGNORED_BECAUSE_HARMLESS: list[dict[str, Any]] = [
    {"user": "me", "safety_identifier": "x", "prompt_cache_key": "y"},
    {"response_format": {"type": "text"}, "store": False, "service_tier": "auto", "metadata": {}},
    {"use_beam_search": False, "length_penalty": 1.0, "add_special_tokens": False, "echo": False},
    {"temperature": None, "n": None, "stop": None, "logprobs": None, "stream_options": None, "seed": None},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"best_of": 2}, "best_of"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"stop_token_ids": [31]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**30]}, "allowed_token_ids"),
    ({"logit_bias": {"3": 100.5}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"31": 1}}, "logit_bias"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"priority": 2**40}, "priority"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"cache_salt": "s" * 300}, "cache_salt"),
    ({"request_id": "a\nb"}, "request_id"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"guided_json": {}}, "guided_json"),
    ({"structured_outputs": {"json": {}}}, "structured_outputs"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"length_penalty": 2}, "length_penalty"),
    ({"store": True}, "store"),
    ({"store": 0}, "store"),
    ({"length_penalty": True}, "length_penalty"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"service_tier": "priority"}, "service_tier"),
]
COMPLETIONS_REFUSE: list[tuple[dict[str, Any], str]] = [
    ({"suffix": "end"}, "suffix"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, 31]}, "prompt"),
    ({"prompt": [[1], [-1]]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ["a"] * 2000}, "prompt"),
    ({"prompt_embeds": "x"}, "prompt_embeds"),
]
CHAT_REFUSES: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {}}, "prediction"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"echo": True}, "echo"),
    ({"add_special_tokens": True}, "add_special_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}] * 5000}, "messages"),
]


def submitted(server: Serving, raw: httpx.Client, path: str, body: dict[str, Any]) -> Request:
    answer = raw.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return server.engine.submitted[-1]


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize(("wishes", "expected"), HONOURED)
def test_what_reaches_the_engine(
    scripted: Serving, raw: httpx.Client, each: Each, wishes: dict[str, Any], expected: dict[str, Any]
) -> None:
    path, base = each
    sampling = submitted(
        scripted, raw, path, {**base, "max_tokens": 3, **_lengths(wishes), **wishes}
    ).sampling
    assert {name: getattr(sampling, name) for name in expected} == expected


def _lengths(wishes: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": None} if "max_completion_tokens" in wishes else {}


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("wishes", IGNORED_BECAUSE_HARMLESS)
def test_what_asks_for_nothing_is_accepted(raw: httpx.Client, each: Each, wishes: dict[str, Any]) -> None:
    path, base = each
    assert raw.post(path, json={**base, "max_tokens": 1, **wishes}).status_code == 200


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize(("wishes", "name"), REFUSED)
def test_what_is_refused_by_name(
    scripted: Serving, raw: httpx.Client, each: Each, wishes: dict[str, Any], name: str
) -> None:
    path, base = each
    check_refusal(scripted, raw.post(path, json={**base, **wishes}), name)


@pytest.mark.parametrize(("wishes", "name"), COMPLETIONS_REFUSE)
def test_what_completions_refuse(
    scripted: Serving, raw: httpx.Client, wishes: dict[str, Any], name: str
) -> None:
    check_refusal(scripted, raw.post(COMPLETIONS, json={**PROMPT, **wishes}), name)
    check_refusal(scripted, raw.post(COMPLETIONS, json={**PROMPT, **wishes, "stream": True}), name)


@pytest.mark.parametrize(("wishes", "name"), CHAT_REFUSES)
def test_what_chats_refuse(scripted: Serving, raw: httpx.Client, wishes: dict[str, Any], name: str) -> None:
    check_refusal(scripted, raw.post(CHAT, json={**MESSAGES, **wishes}), name)
    check_refusal(scripted, raw.post(CHAT, json={**MESSAGES, **wishes, "stream": True}), name)


def check_refusal(server: Serving, answer: httpx.Response, name: str) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].split("[")[0].split(".")[0] == name, error
    assert name in error["message"]
    assert server.service.reservations.living == 0


def test_what_the_request_is_to_the_engine(scripted: Serving, raw: httpx.Client) -> None:
    body = {**PROMPT, "max_tokens": 1, "priority": -5, "cache_salt": "mine", "request_id": "theirs"}
    request = submitted(scripted, raw, COMPLETIONS, body)
    assert request.priority == -2
    assert request.cache_salt == "key\0mine"
    assert request.request_id != "theirs"
    assert not request.stream
    assert request.eos_token_ids == {0}
    assert submitted(scripted, raw, COMPLETIONS, {**body, "ignore_eos": True}).eos_token_ids == frozenset()
    assert submitted(scripted, raw, COMPLETIONS, {**PROMPT, "max_tokens": 1}).cache_salt == "key"


def test_lengths_where_none_is_asked_for(scripted: Serving, raw: httpx.Client) -> None:
    assert submitted(scripted, raw, COMPLETIONS, {**PROMPT}).sampling.max_tokens == 16
    assert (
        submitted(scripted, raw, CHAT, {**MESSAGES, "stop_token_ids": [1, 2, 3]}).sampling.max_tokens is None
    )


def test_bad_words_are_spelled_with_and_without_a_space(scripted: Serving, raw: httpx.Client) -> None:
    request = submitted(scripted, raw, COMPLETIONS, {**PROMPT, "max_tokens": 1, "bad_words": ["ab"]})
    assert request.bad_token_sequences == ((0, 1), (26, 0, 1))


def test_a_cut_prompt_keeps_its_end(scripted: Serving, raw: httpx.Client) -> None:
    body = {"prompt": "abcdef", "max_tokens": 1, "truncate_prompt_tokens": 2}
    assert submitted(scripted, raw, COMPLETIONS, body).prompt_token_ids == (4, 5)
    longer = {"prompt": list(range(30)) * 9, "max_tokens": 1, "truncate_prompt_tokens": 20}
    assert len(submitted(scripted, raw, COMPLETIONS, longer).prompt_token_ids) == 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": list(range(30)) * 9}),
        (COMPLETIONS, {"prompt": "a" * 128}),
        (COMPLETIONS, {"prompt": "a" * 120, "max_tokens": 9}),
        (COMPLETIONS, {"prompt": ["a", "a" * 5000]}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 5000}]}),
        (CHAT, {**MESSAGES, "max_tokens": 120}),
    ],
)
def test_what_does_not_fit_is_refused_and_never_cut(
    scripted: Serving, raw: httpx.Client, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = raw.post(path, json={**body, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert scripted.service.reservations.living == 0


@pytest.mark.parametrize("each", EACH)
def test_an_unknown_model(raw: httpx.Client, each: Each) -> None:
    path, base = each
    answer = raw.post(path, json={**base, "model": "gpt-9"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert raw.post(path, json={**base, "model": "alias/of-m", "max_tokens": 1}).json()["model"] == "m"


def test_roles_and_parts_that_a_conversation_may_have(raw_embedded: httpx.Client) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42", "tool_call_id": "x"},
        {"role": "user", "content": "go on <|end|>"},
    ]
    answer = raw_embedded.post(CHAT, json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_not_text(raw_embedded: httpx.Client, kind: str) -> None:
    part = {"type": kind, kind: {"url": "https://x/y.png"}}
    answer = raw_embedded.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0]"
