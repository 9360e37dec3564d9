from __future__ import annotations

import json

import httpx

from tests.unit.entrypoints.scripted_world import alone
from tests.unit.entrypoints.server.protocols.openai.frames import DONE, chunks, events

MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_chat_stream_byte_for_byte(raw: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "seed": 7, "ignore_eos": True, "request_id": "golden"}
    options = {"stream_options": {"include_usage": True}, "cache_salt": "golden"}
    answer = raw.post("/v1/chat/completions", json={**body, **options, "stream": True})
    created = json.loads(events(answer.text)[0].removeprefix("data: "))["created"]
    first, second = list(alone("user.hi.", tokens=2))
    head = f'{{"id":"chatcmpl-golden","object":"chat.completion.chunk","created":{created},"model":"m","choices":['
    begin = f'{{"index":0,"delta":{{"role":"assistant","content":"{first}"}},"logprobs":null,"finish_reason":null}}'
    finish = f'{{"index":0,"delta":{{"content":"{second}"}},"logprobs":null,"finish_reason":"length"}}'
    details = '"prompt_tokens_details":{"cached_tokens":0}'
    usage = f'{{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10,{details}}}'
    assert events(answer.text) == [
        f"data: {head}{begin}]}}",
        f"data: {head}{finish}]}}",
        f'data: {head}],"usage":{usage}}}',
        DONE,
    ]


def test_a_chat_answer(raw: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "seed": 7, "ignore_eos": True, "cache_salt": "an answer"}
    answer = raw.post("/v1/chat/completions", json=body).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    message = {"content": alone("user.hi.", tokens=3), "role": "assistant"}
    usage = {
        "prompt_tokens": 8,
        "completion_tokens": 3,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    assert answer == {"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def test_no_two_answers_have_one_id(raw: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert len({raw.post("/v1/completions", json=body).json()["id"] for _ in range(3)}) == 3


def test_every_chunk_with_choices_is_a_token(raw: httpx.Client) -> None:
    found = chunks(raw, "/v1/completions", {"prompt": "count me", "max_tokens": 9, "ignore_eos": True})
    assert len(found) == 9
    assert [each["choices"][0]["finish_reason"] for each in found] == [None] * 8 + ["length"]


def test_an_answer_that_ends_at_once_is_one_chunk_with_its_role_and_its_end(raw: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 4}
    searched = (chunks(raw, "/v1/chat/completions", {**body, "seed": seed}) for seed in range(400))
    (chunk,) = next(each for each in searched if len(each) == 1)
    choice = chunk["choices"][0]
    assert choice["delta"] == {"role": "assistant", "content": ""}
    assert choice["finish_reason"] == "stop"


def test_a_stop_string_and_a_stop_id_are_named(raw: httpx.Client) -> None:
    text = alone("abc", tokens=12)
    body = {"prompt": "abc", "seed": 7, "max_tokens": 12, "ignore_eos": True}
    choice = raw.post("/v1/completions", json={**body, "stop": [text[3:5]]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:3], "stop", text[3:5])
    token = raw.post("/tokenize", json={"prompt": text[4]}).json()["tokens"][0]
    choice = raw.post("/v1/completions", json={**body, "stop_token_ids": [token]}).json()["choices"][0]
    assert choice["text"] == text[: text.index(text[4])]
    assert choice["stop_reason"] == token
