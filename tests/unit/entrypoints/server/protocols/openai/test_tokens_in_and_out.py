"""What trainers ask for: prompts and answers as token ids, and the log-probabilities of many tokens beside each."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest

from nanoserve.entrypoints.server.protocols.openai.tokens import as_array_file

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
AS_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}


def ask(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def named(ids: list[int]) -> list[str]:
    return [f"token_id:{token}" for token in ids]


def test_tokens_of_a_completion_are_named_by_their_ids(raw_embedded: httpx.Client) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "logprobs": 3, "seed": 1}
    plain = ask(raw_embedded, COMPLETIONS, **body, return_token_ids=True)["choices"][0]
    choice = ask(raw_embedded, COMPLETIONS, **body, **AS_IDS)["choices"][0]
    assert choice["text"] == plain["text"]
    assert choice["logprobs"]["tokens"] == named(plain["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == plain["logprobs"]["token_logprobs"]
    tops = choice["logprobs"]["top_logprobs"]
    for token, top, like in zip(
        named(plain["token_ids"]), tops, plain["logprobs"]["top_logprobs"], strict=True
    ):
        assert len(top) == 3
        assert max(top, key=top.__getitem__) == token
        assert sorted(top.values()) == sorted(like.values())


@pytest.mark.parametrize(("path", "more"), [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": MESSAGES})])
def test_answers_with_ids_say_which_weights_made_them(
    raw_embedded: httpx.Client, path: str, more: dict[str, Any]
) -> None:
    body = {"max_tokens": 2, **more}
    assert ask(raw_embedded, path, **body, return_token_ids=True)["choices"][0]["weight_version"] == "0"
    assert "weight_version" not in ask(raw_embedded, path, **body)["choices"][0]


def test_tokens_of_an_echoed_prompt_are_named_by_their_ids(raw_embedded: httpx.Client) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 0, "echo": True, "logprobs": 0}
    choice = ask(raw_embedded, COMPLETIONS, **body, **AS_IDS)["choices"][0]
    assert choice["logprobs"]["tokens"] == named([5, 6, 7])


def test_tokens_of_a_chat_are_named_by_their_ids(raw_embedded: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "seed": 1}
    choice = ask(raw_embedded, CHAT, **body, **AS_IDS)["choices"][0]
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == named(choice["token_ids"])
    for each in content:
        assert bytes(each["bytes"]).decode() == each["token"]
        assert all(like["token"].startswith("token_id:") for like in each["top_logprobs"])


def test_prompt_positions_have_as_many_tokens_as_the_bound_allows(raw_embedded: httpx.Client) -> None:
    body = {"prompt": [5, 6, 7, 8], "max_tokens": 1, "prompt_logprobs": 100, "logprobs": 100}
    choice = ask(raw_embedded, COMPLETIONS, **body)["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token, position in zip(("6", "7", "8"), others, strict=True):
        assert {each["rank"] for each in position.values()} >= set(range(1, 101))
        assert len(position) == (100 if position[token]["rank"] <= 100 else 101)
    assert len(choice["logprobs"]["top_logprobs"][0]) > 50, "some tokens look alike"


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        (COMPLETIONS, {"prompt": "a", "logprobs": 101}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 101}, "prompt_logprobs"),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        (CHAT, {"messages": MESSAGES, "prompt_logprobs": 101}, "prompt_logprobs"),
        ("/v1/responses", {"input": "a", "top_logprobs": 101}, "top_logprobs"),
        (
            "/api/generate",
            {"model": "m", "prompt": "a", "logprobs": True, "top_logprobs": 101},
            "top_logprobs",
        ),
    ],
)
def test_more_than_the_bound_is_refused_with_the_setting_that_raises_it(
    raw_embedded: httpx.Client, path: str, fields: dict[str, Any], name: str
) -> None:
    answer = raw_embedded.post(path, json=fields)
    assert answer.status_code == 400
    assert f"{name}: must be at most 100, got 101; max_logprobs raises the bound" in answer.text


GENERATE = "/inference/v1/generate"


def test_tokens_are_generated_from_tokens(raw_embedded: httpx.Client) -> None:
    sampling = {"max_tokens": 5, "temperature": 0.8, "seed": 3, "logprobs": 2, "prompt_logprobs": 1, "n": 2}
    body = {
        "token_ids": [5, 6, 7],
        "request_id": "mine",
        "sampling_params": sampling,
        "return_token_ids": True,
    }
    found = ask(raw_embedded, GENERATE, **body)
    like = ask(raw_embedded, COMPLETIONS, prompt=[5, 6, 7], top_p=1, top_k=0, **sampling, **AS_IDS)
    assert (found["request_id"], found["id"]) == ("mine", "generate-tokens-mine")
    assert found["usage"] == like["usage"]
    assert found["prompt_token_ids"] == [5, 6, 7]
    assert found["prompt_logprobs"] == like["choices"][0]["prompt_logprobs"]
    for ours, theirs in zip(found["choices"], like["choices"], strict=True):
        assert ours["token_ids"] == theirs["token_ids"]
        assert ours["finish_reason"] == theirs["finish_reason"] == "length"
        content = ours["logprobs"]["content"]
        assert [each["token_id"] for each in content] == ours["token_ids"]
        assert [each["token"] for each in content] == theirs["logprobs"]["tokens"]
        assert [each["logprob"] for each in content] == theirs["logprobs"]["token_logprobs"]
        for each in content:
            ranks = {top["token_id"]: top["rank"] for top in each["top_logprobs"]}
            assert [*ranks.values()] == [1, 2]
            assert ranks.get(each["token_id"], each["rank"]) == each["rank"]


def test_streamed_tokens_are_those_of_the_whole_answer(raw_embedded: httpx.Client) -> None:
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 6, "seed": 3, "logprobs": 0}}
    (choice,) = ask(raw_embedded, GENERATE, **body)["choices"]
    streamed = raw_embedded.post(GENERATE, json={**body, "stream": True}).text
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(each)["choices"][0] for each in events]
    assert [token for each in chunks for token in each["token_ids"]] == choice["token_ids"]
    assert [score for each in chunks for score in each["logprobs"]["content"]] == choice["logprobs"][
        "content"
    ]
    assert chunks[-1]["finish_reason"] == "length"
    assert [each.get("weight_version") for each in chunks] == [None] * (len(chunks) - 1) + ["0"]


def test_tokens_end_at_a_stop_string_and_follow_a_grammar(raw_embedded: httpx.Client) -> None:
    ids = raw_embedded.post("/tokenize", json={"prompt": "Once upon a time"}).json()["tokens"]
    free = {"max_tokens": 30, "temperature": 0}
    (choice,) = ask(raw_embedded, GENERATE, token_ids=ids, sampling_params={**free, "stop": ["."]})["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ".")
    kept = {**free, "structured_outputs": {"regex": "(yes|no)"}}
    (choice,) = ask(raw_embedded, GENERATE, token_ids=ids, sampling_params=kept)["choices"]
    text = raw_embedded.post("/detokenize", json={"tokens": choice["token_ids"], "skip_special_tokens": True})
    assert text.json()["prompt"] in {"yes", "no"}


@pytest.mark.parametrize(("numbers", "dtype"), [((3, 2, 1), "uint8"), ((2, 4, 2), "uint16")])
def test_experts_travel_as_a_file_of_numpy(numbers: tuple[int, int, int], dtype: str) -> None:
    layers, top, _ = numbers
    wanted = np.arange(5 * layers * top, dtype=dtype).reshape(5, layers, top) * (
        1 if dtype == "uint8" else 999
    )
    text = as_array_file(wanted.tobytes(), numbers)
    found = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [4096]}, "token_ids"),
        ({"token_ids": "Once"}, "token_ids"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"return_routed_experts": True}, "return_routed_experts"),
        ({"sampling_params": {"priority": 1}}, "sampling_params.priority"),
        ({"sampling_params": {"logprobs": 101}}, "logprobs"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"max_tokens": 1000}}, "max_tokens"),
    ],
)
def test_what_tokens_cannot_be_made_of_is_refused_by_name(
    raw_embedded: httpx.Client, fields: dict[str, Any], name: str
) -> None:
    answer = raw_embedded.post(GENERATE, json={"token_ids": [5], "sampling_params": {}, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name, answer.text
