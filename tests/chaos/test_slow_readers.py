"""Clients that ask for a lot and do not read it delay no other request, and cost the server bounded memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.chaos.losing import undisturbed
from tests.chaos.subject import Subject
from tests.chaos.watching import scrape, until, watched
from tests.chaos.wire import Exchange

MIB = 2**20
READERS = 6
LONG: dict[str, Any] = {
    "prompt": "Once upon a time",
    "max_tokens": 300,
    "n": 2,
    "temperature": 0.8,
    "seed": 11,
    "logprobs": 20,
    "ignore_eos": True,
}


def test_slow_readers_delay_no_other_request(subject: Subject) -> None:
    asyncio.run(_neglect(subject))


async def _neglect(subject: Subject) -> None:
    port = subject.port
    usual = await undisturbed(port)
    expected = await _texts_of_whole(port)
    before = await scrape(port)
    async with watched(port) as watch:
        readers = [
            await Exchange.send(port, "/v1/completions", LONG | {"stream": True}, receive_buffer=2048)
            for _ in range(READERS)
        ]
        neighbours = await undisturbed(port)
        assert [each.text for each in neighbours] == [each.text for each in usual]
        assert (await scrape(port)).disconnected == before.disconnected, "slow readers are still connected"
        assert await _texts(readers[0]) == expected, "a late reader gets everything"
        for each in readers:
            each.close()
        await until(port, lambda seen: seen.is_idle)
        await until(port, lambda seen: seen.disconnected - before.disconnected == READERS - 1)
    last = watch.scrapes[-1]
    assert watch.unbalanced == []
    assert last.is_idle
    grown = max(each.memory["http"] for each in watch.scrapes) - before.memory["http"]
    assert grown < 64 * MIB


async def _texts(reader: Exchange) -> list[str]:
    texts = ["", ""]
    async for data in reader.events():
        for choice in [] if data == "[DONE]" else json.loads(data)["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


async def _texts_of_whole(port: int) -> list[str]:
    exchange = await Exchange.send(port, "/v1/completions", LONG)
    answer = json.loads(await exchange.whole())
    return [each["text"] for each in sorted(answer["choices"], key=lambda each: each["index"])]
