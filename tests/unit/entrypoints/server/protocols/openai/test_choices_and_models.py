"""What OpenAI's older endpoints have beyond the contract: several choices and prompts, echo, usage in every chunk."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from tests.unit.entrypoints.scripted_world import alone
from tests.unit.entrypoints.server.protocols.dialects import DIALECTS, comparable

MESSAGES = [{"role": "user", "content": "tell me, friend"}]
_salts = itertools.count()

COMMON: dict[str, dict[str, Any]] = {
    "n": {"n": 3},
    "stop kept": {"stop": ["t", "ab"], "include_stop_str_in_output": True, "max_tokens": 60, "n": 2},
    "stop ids kept": {"stop_token_ids": [5, 9], "include_stop_str_in_output": True, "max_tokens": 60},
    "end of sequence": {"max_tokens": 80, "n": 3},
    "end of sequence ignored": {"max_tokens": 80, "ignore_eos": True},
    "ids": {"return_token_ids": True, "n": 2},
    "prompt logprobs": {"prompt_logprobs": 2},
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
    "top logprobs": {"logprobs": True, "top_logprobs": 3, "n": 2, "stop": "e", "max_tokens": 60},
    "newer name": {"max_tokens": None, "max_completion_tokens": 4},
}


def chunks(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a streamed answer."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    name = "chat" if path.startswith("/v1/chat") else "completions"
    return DIALECTS[name].events(answer.text)


def both(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A body's streamed and unstreamed answers; each with a salt of its own, so that neither finds cached blocks."""
    salted = [{**body, "cache_salt": f"choice {next(_salts)}"} for _ in range(2)]
    usage = {"stream_options": {"include_usage": True}}
    streamed = DIALECTS["chat"].whole(chunks(client, path, {**salted[0], **usage}))
    whole = client.post(path, json=salted[1])
    assert whole.status_code == 200, whole.text
    return comparable(streamed), comparable(whole.json())


@pytest.mark.parametrize(
    ("path", "wishes"),
    [
        ("/v1/completions", {"prompt": "hello there, friend", **each})
        for each in (COMMON | COMPLETION).values()
    ]
    + [("/v1/chat/completions", {"messages": MESSAGES, **each}) for each in (COMMON | CHAT).values()],
)
def test_a_stream_says_what_the_whole_says(raw: httpx.Client, path: str, wishes: dict[str, Any]) -> None:
    streamed, whole = both(raw, path, {"max_tokens": 12, "seed": 11, **wishes})
    assert streamed == whole
    assert all(each["finish_reason"] in {"stop", "length"} for each in whole["choices"])


@pytest.mark.parametrize("seed", range(2))
def test_a_real_model_whose_tokens_are_bytes(raw_embedded: httpx.Client, seed: int) -> None:
    """At this temperature most tokens are halves of characters."""
    wishes = {"seed": seed, "temperature": 50.0, "max_tokens": 24, "n": 2, "return_token_ids": True}
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


def test_models(raw: httpx.Client) -> None:
    listed = raw.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["scripted", "alias"]
    one = raw.get("/v1/models/alias").json()
    assert {**one, "created": 0, "created_at": ""} == {
        "id": "alias",
        "object": "model",
        "created": 0,
        "type": "model",
        "display_name": "alias",
        "created_at": "",
        "owned_by": "nanoserve",
        "root": "scripted",
        "parent": None,
        "max_model_len": 512,
        "permission": [],
        "default_sampling": {},
    }
    assert raw.get("/v1/models/nothing").json()["error"]["code"] == "model_not_found"


def test_tokens_and_texts(raw: httpx.Client) -> None:
    made = raw.post("/tokenize", json={"prompt": "abc", "return_token_strs": True}).json()
    assert made == {"count": 3, "max_model_len": 512, "tokens": [0, 1, 2], "token_strs": ["a", "b", "c"]}
    messages = [{"role": "b", "content": "c"}]
    chat = raw.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert chat["tokens"] == [1, 27, 2, 27]
    assert raw.post("/detokenize", json={"tokens": [0, 1, 2]}).json() == {"prompt": "abc"}
    for path, body in [
        ("/detokenize", {"tokens": [31]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"prompt": "a" * 5000}),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}),
    ]:
        assert raw.post(path, json=body).status_code == 400, body
    assert raw.post("/tokenize", json={"prompt": "a", "model": "x"}).status_code == 404


def test_what_the_tokenizer_is(raw_embedded: httpx.Client) -> None:
    info = raw_embedded.get("/tokenizer_info").json()
    assert info == {
        "model": "m",
        "vocab_size": 4096,
        "max_model_len": 256,
        "eos_token_ids": [1],
        "tokenizer_class": "Letters",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": "{{ messages }}",
    }
    with_bos = raw_embedded.post("/tokenize", json={"prompt": "Hi"}).json()["tokens"]
    without = raw_embedded.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": False}).json()
    assert with_bos[1:] == without["tokens"]
    body = {"tokens": with_bos}
    assert raw_embedded.post("/detokenize", json=body).json() == {"prompt": "<|bos|>Hi"}
    body["skip_special_tokens"] = True
    assert raw_embedded.post("/detokenize", json=body).json() == {"prompt": "Hi"}
