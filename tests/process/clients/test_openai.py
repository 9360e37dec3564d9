"""The official `openai` client, synchronous and asynchronous, against a server process."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.patience import PATIENCE
from tests.process.clients.access import KEY, MODEL
from tests.process.server_process import ServerProcess

TELL: list[Any] = [{"role": "user", "content": "Tell me a story."}]
GREETING: list[Any] = [{"role": "user", "content": "Hello!"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": TELL, "max_completion_tokens": 16, "seed": 11}
LONG = {"ignore_eos": True}


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
