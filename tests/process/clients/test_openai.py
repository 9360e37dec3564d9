"""The official `openai` client, synchronous and asynchronous, against a server process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest

from tests.patience import PATIENCE
from tests.process.clients.access import KEY, MODEL
from tests.process.server_process import ServerProcess

STORY: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16, "seed": 11}
STORY_WISH: list[Any] = [{"role": "user", "content": "Tell me a story."}]
GREETING: list[Any] = [{"role": "user", "content": "Hello!"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": STORY_WISH, "max_completion_tokens": 16, "seed": 11}
LONG = {"ignore_eos": True}


def test_models(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [MODEL]
    found = client.models.retrieve(MODEL)
    assert (found.id, found.object, found.owned_by) == (MODEL, "model", "nanoserve")
    assert found.created <= time.time()
    assert found.model_extra is not None
    assert found.model_extra["max_model_len"] == 1024


def test_a_completion_and_its_stream_are_equal(client: openai.OpenAI) -> None:
    wishes = STORY | {"n": 2, "logprobs": 3, "extra_body": LONG}
    whole = client.completions.create(**wishes)
    assert [each.index for each in whole.choices] == [0, 1]
    assert whole.choices[0].text != whole.choices[1].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 32
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 32
    texts, tokens = ["", ""], ([], [])  # type: tuple[list[str], tuple[list[str], list[str]]]
    reasons: list[Any] = []
    chunks = list(client.completions.create(**wishes, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            assert choice.logprobs is not None
            tokens[choice.index].extend(choice.logprobs.tokens or ())
            reasons.append(choice.finish_reason)
    assert texts == [each.text for each in whole.choices]
    assert [each for each in reasons if each] == ["length", "length"]
    for choice, streamed in zip(whole.choices, tokens, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == streamed
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert len({(each.id, each.created, each.model) for each in chunks}) == 1


def test_prompts_in_every_form(client: openai.OpenAI) -> None:
    two = ["Once upon a time", "The capital of the Netherlands is"]
    greedy: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    alone = [client.completions.create(prompt=each, **greedy).choices[0].text for each in two]
    assert alone[1].startswith(" Amsterdam")
    together = client.completions.create(prompt=two, **greedy)
    assert [each.text for each in together.choices] == alone
    shown = client.completions.create(prompt=two, **greedy, extra_body={"return_token_ids": True})
    ids = [(each.model_extra or {})["prompt_token_ids"] for each in shown.choices]
    assert [each.text for each in client.completions.create(prompt=ids, **greedy).choices] == alone
    assert client.completions.create(prompt=ids[0], **greedy).choices[0].text == alone[0]


def test_a_prompt_is_scored(client: openai.OpenAI) -> None:
    wishes: dict[str, Any] = {"model": MODEL, "prompt": "A young duck is called a duckling", "echo": True}
    scored = client.completions.create(**wishes, max_tokens=0, logprobs=2)
    scores = scored.choices[0].logprobs
    assert scores is not None
    assert scored.choices[0].text == "A young duck is called a duckling"
    assert scores.token_logprobs is not None
    assert scores.token_logprobs[0] is None
    assert all(each <= 0 for each in scores.token_logprobs[1:])
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    more = client.completions.create(**wishes, max_tokens=1, logprobs=2).choices[0].logprobs
    assert more is not None
    assert more.token_logprobs is not None
    assert more.token_logprobs[:-1] == pytest.approx(scores.token_logprobs, abs=1e-4)


def test_seeds(client: openai.OpenAI) -> None:
    def text(seed: int | None) -> str | None:
        chosen = client.chat.completions.create(
            model=MODEL, messages=STORY_WISH, max_tokens=24, temperature=1.5, seed=seed, extra_body=LONG
        )
        return chosen.choices[0].message.content

    assert text(1) == text(1)
    assert len({text(seed) for seed in (1, 2, 3, None, None)}) == 5


def test_where_an_answer_stops(client: openai.OpenAI) -> None:
    greedy: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "temperature": 0}
    whole = client.completions.create(**greedy, max_tokens=20).choices[0]
    assert whole.finish_reason == "length"
    word = whole.text.split()[6]
    cut = client.completions.create(**greedy, max_tokens=20, stop=["no such text", word]).choices[0]
    assert cut.text == whole.text[: whole.text.index(word)]
    assert cut.finish_reason == "stop"
    streamed = list(client.completions.create(**greedy, max_tokens=20, stop=word, stream=True))
    assert "".join(each.choices[0].text for each in streamed) == cut.text
    assert streamed[-1].choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(model=MODEL, messages=GREETING, temperature=0, max_tokens=200)
    assert answer.choices[0].finish_reason == "stop"


def test_a_chat_and_its_stream_are_equal(client: openai.OpenAI) -> None:
    wishes = CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2, "extra_body": LONG}
    whole = client.chat.completions.create(**wishes)
    assert [each.message.role for each in whole.choices] == ["assistant", "assistant"]
    contents, scores = ["", ""], ([], [])  # type: tuple[list[str], tuple[list[Any], list[Any]]]
    with client.chat.completions.create(
        **wishes, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            contents[choice.index] += choice.delta.content or ""
            assert choice.logprobs is not None
            scores[choice.index].extend(choice.logprobs.content or ())
    assert contents == [each.message.content for each in whole.choices]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    for choice, streamed in zip(whole.choices, scores, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.content == streamed
        assert len(streamed) == 16
        assert {len(each.top_logprobs) for each in streamed} == {2}
        assert "".join(each.token for each in streamed) == choice.message.content


def test_the_clients_own_reader_of_streams(client: openai.OpenAI) -> None:
    wishes = CHAT | {"messages": GREETING, "max_completion_tokens": 200}
    whole = client.chat.completions.create(**wishes)
    with client.chat.completions.stream(**wishes) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**CHAT) as stream, pytest.raises(openai.LengthFinishReasonError):
        stream.get_final_completion()


def test_conversations(client: openai.OpenAI) -> None:
    talk: list[Any] = [
        {"role": "developer", "content": "You are a helpful assistant."},
        {"role": "user", "content": [{"type": "text", "text": "My name is Zorin."}]},
        {"role": "assistant", "content": "Nice to meet you, Zorin."},
        {"role": "user", "content": "What is my name?"},
    ]
    said = client.chat.completions.create(model=MODEL, messages=talk, temperature=0, max_tokens=32)
    assert "Zorin" in (said.choices[0].message.content or "")


def test_the_id_of_a_request(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**CHAT, extra_headers={"x-request-id": "my-own"})
    assert raw.headers["x-request-id"] == raw.request_id == "my-own"
    parsed = raw.parse()
    assert parsed._request_id == "my-own"
    assert (
        parsed.choices[0].message.content == client.chat.completions.create(**CHAT).choices[0].message.content
    )
    ids = {client.models.list()._request_id, client.models.list()._request_id}
    assert len(ids) == 2
    assert None not in ids
    with client.completions.with_streaming_response.create(**STORY, stream=True) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.headers["x-request-id"]
        assert list(streamed.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_many_at_once_say_what_each_says_alone(server: ServerProcess, client: openai.OpenAI) -> None:
    def wishes(seed: int) -> dict[str, Any]:
        return CHAT | {"seed": seed, "max_completion_tokens": 12, "extra_body": LONG}

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE
        ) as several:

            async def streamed(seed: int) -> str:
                stream = await several.chat.completions.create(**wishes(seed), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole(seed: int) -> str:
                answer = await several.chat.completions.create(**wishes(seed))
                return answer.choices[0].message.content or ""

            assert [each.id async for each in several.models.list()] == [MODEL]
            return await asyncio.gather(*(whole(seed) if seed % 2 else streamed(seed) for seed in range(8)))

    alone = [client.chat.completions.create(**wishes(seed)).choices[0].message.content for seed in range(8)]
    assert asyncio.run(ask()) == alone
