"""What a request becomes to the engine, and what does not fit."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from nanoserve.entrypoints.server.http.sampling_fields import read_sampling
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from tests.unit.entrypoints.server.protocols.openai.serving import Serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT: dict[str, Any] = {"prompt": "hello"}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
Each = tuple[str, dict[str, Any]]
EACH: list[Each] = [(COMPLETIONS, PROMPT), (CHAT, MESSAGES)]


def submitted(server: Serving, raw: httpx.Client, path: str, body: dict[str, Any]) -> Request:
    answer = raw.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return server.engine.submitted[-1]


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


def test_defaults_stand_in_for_what_is_not_given() -> None:
    def read(**given: Any) -> SamplingParams:
        body = msgspec.convert({"messages": [], **given}, ChatBody)
        return read_sampling(body, Api.OPENAI, {"temperature": 0.7, "top_p": 0.9})

    assert read(top_p=None, n=2) == SamplingParams(temperature=0.7, top_p=0.9, n=2, max_tokens=None)
    assert read(temperature=0.0).temperature == 0.0
    with pytest.raises(BadValueError, match="min_p"):
        read(min_p=3.0)
