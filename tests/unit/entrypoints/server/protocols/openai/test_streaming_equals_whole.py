from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from tests.unit.entrypoints.server.protocols.openai.frames import chunks, comparable, joined

MESSAGES = [{"role": "user", "content": "tell me, friend"}]
USAGE = {"stream_options": {"include_usage": True}}
_salts = itertools.count()

COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "n": {"n": 3},
    "one token": {"max_tokens": 1},
    "stop": {"stop": ["e", "th", "qx"], "max_tokens": 60},
    "stop kept": {"stop": ["t", "ab"], "include_stop_str_in_output": True, "max_tokens": 60, "n": 2},
    "stop ids": {"stop_token_ids": [5, 9], "max_tokens": 60},
    "stop ids kept": {"stop_token_ids": [5, 9], "include_stop_str_in_output": True, "max_tokens": 60},
    "end of sequence": {"max_tokens": 80, "n": 3},
    "end of sequence ignored": {"max_tokens": 80, "ignore_eos": True},
    "ids": {"return_token_ids": True, "n": 2},
    "prompt logprobs": {"prompt_logprobs": 2},
    "at least": {"min_tokens": 20, "stop_token_ids": [3, 4], "max_tokens": 30},
    "cut prompt": {"truncate_prompt_tokens": 5, "return_token_ids": True},
    "to the end": {"max_tokens": None},
}
COMPLETION: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 3},
    "logprobs 0": {"logprobs": 0},
    "echo": {"echo": True, "n": 3},
    "echo logprobs": {"echo": True, "logprobs": 2, "prompt_logprobs": 1, "stop": "e"},
    "echo only": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "echo only, several": {"echo": True, "max_tokens": 0, "n": 2, "prompt": ["abc", "hello"]},
    "echo of ids": {"echo": True, "prompt": [3, 4, 5], "logprobs": 1, "return_token_ids": True},
    "echo of a cut prompt": {"echo": True, "truncate_prompt_tokens": 3, "logprobs": 1},
    "texts": {"prompt": ["one", "two words", "three"], "n": 2, "logprobs": 1},
    "id lists": {"prompt": [[1, 2], [3, 4, 5], [6]], "echo": True, "return_token_ids": True},
}
CHAT: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 3, "n": 2, "stop": "e", "max_tokens": 60},
    "newer name": {"max_tokens": None, "max_completion_tokens": 4},
}
COMPLETIONS = COMMON | COMPLETION
CHATS = COMMON | CHAT


def both(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A body's streamed and unstreamed answers; each with a salt of its own, so that neither finds cached blocks."""
    salted = [{**body, "cache_salt": f"s{next(_salts)}"} for _ in range(2)]
    streamed = joined(chunks(client, path, {**salted[0], **USAGE}))
    whole = client.post(path, json=salted[1])
    assert whole.status_code == 200, whole.text
    return streamed, comparable(whole.json())


@pytest.mark.parametrize("wishes", COMPLETIONS.values(), ids=COMPLETIONS.keys())
def test_completions(raw: httpx.Client, wishes: dict[str, Any]) -> None:
    body = {"prompt": "hello there, friend", "max_tokens": 12, "seed": 11, **wishes}
    streamed, whole = both(raw, "/v1/completions", body)
    assert streamed == whole
    assert all(each["finish_reason"] in {"stop", "length"} for each in whole["choices"])


@pytest.mark.parametrize("wishes", CHATS.values(), ids=CHATS.keys())
def test_chats(raw: httpx.Client, wishes: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": 11, **wishes}
    streamed, whole = both(raw, "/v1/chat/completions", body)
    assert streamed == whole
    assert all(each["finish_reason"] in {"stop", "length"} for each in whole["choices"])


@pytest.mark.parametrize("seed", range(3))
def test_a_real_model_that_speaks_in_bytes(raw_embedded: httpx.Client, seed: int) -> None:
    """At this temperature most tokens are halves of characters."""
    wishes = {"seed": seed, "temperature": 50.0, "max_tokens": 40, "n": 2, "return_token_ids": True}
    for extra in ({"logprobs": 2, "echo": True}, {"stop": ["e", " "], "logprobs": 0}):
        body = {"prompt": "Once upon a \u2014 \U0001f642", **wishes, **extra}
        streamed, whole = both(raw_embedded, "/v1/completions", body)
        assert streamed == whole
        for choice in whole["choices"]:
            offsets, count = choice["logprobs"]["text_offset"], len(choice["text"])
            assert offsets == sorted(offsets)
            assert all(0 <= each <= count for each in offsets)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2, **wishes}
    streamed, whole = both(raw_embedded, "/v1/chat/completions", chat)
    assert streamed == whole


def test_usage_of_every_chunk_counts_up_to_the_usage_of_the_answer(raw: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": MESSAGES, "max_tokens": 6, "n": 2, "seed": 1, "ignore_eos": True}
    found = chunks(raw, "/v1/chat/completions", {**body, "stream_options": options})
    counts = [each["usage"]["completion_tokens"] for each in found]
    assert counts == [*range(1, 13), 12]
    assert found[-1]["choices"] == []
    assert all(
        each["usage"]["total_tokens"] == each["usage"]["prompt_tokens"] + count
        for each, count in zip(found, counts, strict=True)
    )
    alone = chunks(raw, "/v1/chat/completions", {**body, "stream_options": {"continuous_usage_stats": True}})
    assert all(each["choices"] and "usage" in each for each in alone)
    silent = chunks(raw, "/v1/chat/completions", body)
    assert all(each["choices"] and "usage" not in each for each in silent)
