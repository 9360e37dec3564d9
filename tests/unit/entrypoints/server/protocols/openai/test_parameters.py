"""What a request of OpenAI's older endpoints becomes to the engine."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from nanoserve.entrypoints.server.http.fields import read_sampling
from nanoserve.entrypoints.server.protocols.openai.wire import ChatBody
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import Api, SamplingParams
from tests.unit.entrypoints.server.http.app_world import EOS, AppWorld

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT: dict[str, Any] = {"prompt": "hello"}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


def submitted(world: AppWorld, raw: httpx.Client, path: str, body: dict[str, Any]) -> Request:
    answer = raw.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return world.engine.requests[-1]


def test_what_the_request_is_to_the_engine(world: AppWorld, raw: httpx.Client) -> None:
    body = {**PROMPT, "max_tokens": 1, "request_id": "theirs"}
    request = submitted(world, raw, COMPLETIONS, body)
    assert request.request_id != "theirs"
    assert not request.stream
    assert request.eos_token_ids == {EOS}
    assert submitted(world, raw, COMPLETIONS, {**body, "ignore_eos": True}).eos_token_ids == frozenset()


def test_lengths_where_none_is_asked_for(world: AppWorld, raw: httpx.Client) -> None:
    assert submitted(world, raw, COMPLETIONS, {**PROMPT}).sampling.max_tokens == 16
    assert submitted(world, raw, CHAT, {**MESSAGES, "stop_token_ids": [1, 2, 3]}).sampling.max_tokens is None


def test_bad_words_are_tokenized_with_and_without_a_space(world: AppWorld, raw: httpx.Client) -> None:
    request = submitted(world, raw, COMPLETIONS, {**PROMPT, "max_tokens": 1, "bad_words": ["ab"]})
    assert request.bad_token_sequences == ((0, 1), (26, 0, 1))


def test_a_cut_prompt_keeps_its_end(world: AppWorld, raw: httpx.Client) -> None:
    body = {"prompt": "abcdef", "max_tokens": 1, "truncate_prompt_tokens": 2}
    assert submitted(world, raw, COMPLETIONS, body).prompt_token_ids == (4, 5)
    longer = {"prompt": list(range(30)) * 9, "max_tokens": 1, "truncate_prompt_tokens": 20}
    assert len(submitted(world, raw, COMPLETIONS, longer).prompt_token_ids) == 20


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


def test_defaults_stand_in_for_what_is_not_given() -> None:
    def read(**given: Any) -> SamplingParams:
        body = msgspec.convert({"messages": [], **given}, ChatBody)
        return read_sampling(body, Api.OPENAI, {"temperature": 0.7, "top_p": 0.9})

    assert read(top_p=None, n=2) == SamplingParams(temperature=0.7, top_p=0.9, n=2, max_tokens=None)
    assert read(temperature=0.0).temperature == 0.0
    with pytest.raises(BadValueError, match="min_p"):
        read(min_p=3.0)
