from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.unit.entrypoints.scripted_world import alone
from tests.unit.entrypoints.server.protocols.openai.serving import Serving

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


def test_models(letters: openai.OpenAI) -> None:
    listed = letters.models.list().data
    assert [each.id for each in listed] == ["m", "alias/of-m"]
    one = letters.models.retrieve("alias/of-m")
    assert (one.id, one.object, one.owned_by) == ("alias/of-m", "model", "nanoserve")
    extra = one.model_extra
    assert extra is not None
    assert (extra["root"], extra["parent"], extra["max_model_len"], extra["permission"]) == (
        "scripted",
        None,
        128,
        [],
    )
    with pytest.raises(openai.NotFoundError) as caught:
        letters.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


def test_completions_and_their_streams(letters: openai.OpenAI) -> None:
    wishes: dict[str, Any] = {
        "model": "m",
        "prompt": "abc",
        "max_tokens": 6,
        "seed": 7,
        "logprobs": 1,
        "n": 2,
    }
    extra = {"ignore_eos": True}
    whole = letters.completions.create(**wishes, extra_body=extra)
    assert [each.text for each in whole.choices] == [alone("abc", index=index, tokens=6) for index in (0, 1)]
    assert whole.choices[0].logprobs.tokens == list(whole.choices[0].text)
    texts = ["", ""]
    stream = letters.completions.create(**wishes, stream=True, extra_body=extra)
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [each.text for each in whole.choices]


def test_chats_and_their_streams(letters: openai.OpenAI) -> None:
    wishes: dict[str, Any] = {
        "model": "m",
        "messages": MESSAGES,
        "max_tokens": 6,
        "seed": 7,
        "logprobs": True,
    }
    extra = {"ignore_eos": True}
    whole = letters.chat.completions.create(**wishes, extra_body=extra)
    text = alone("user.hello.", tokens=6)
    assert whole.choices[0].message.content == text
    assert [each.token for each in whole.choices[0].logprobs.content] == list(text)
    with letters.chat.completions.stream(**wishes, stop=text[4:], extra_body=extra) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[:4]
    assert final.choices[0].finish_reason == "stop"
    scores = final.choices[0].logprobs
    assert scores is not None
    assert [each.token for each in scores.content or ()] == list(text[:4])


def test_the_asynchronous_client_with_many_at_once(scripted: Serving) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="k", timeout=60) as client:

            async def one(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model="m",
                    messages=MESSAGES,
                    seed=seed,
                    max_tokens=9,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(seed) for seed in range(32)))

    texts = asyncio.run(ask())
    assert texts == [alone("user.hello.", seed=seed, tokens=9) for seed in range(32)]


def test_errors_are_of_the_classes_that_the_client_has(letters: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        letters.chat.completions.create(model="m", messages=MESSAGES, temperature=-1)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as caught:
        letters.completions.create(model="m", prompt="a" * 500, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        letters.completions.create(model="x", prompt="a")


def test_a_client_whose_patience_ends(scripted: Serving) -> None:
    scripted.call(lambda: scripted.engine.hold(True))
    with (
        openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="k", max_retries=0, timeout=0.1) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.completions.create(model="m", prompt="abc", max_tokens=50)
    scripted.call(lambda: scripted.engine.hold(False))


def test_tokens_and_texts(raw: httpx.Client) -> None:
    made = raw.post("/tokenize", json={"prompt": "abc", "return_token_strs": True}).json()
    assert made == {"count": 3, "max_model_len": 128, "tokens": [0, 1, 2], "token_strs": ["a", "b", "c"]}
    chat = raw.post("/tokenize", json={"messages": [{"role": "b", "content": "c"}]}).json()
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
