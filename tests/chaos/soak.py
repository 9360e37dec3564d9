"""Thousands of small requests of every kind, refused and cancelled ones among them, and what they leave behind."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from tests.chaos.subject import Subject
from tests.chaos.watching import Scrape, scrape, until, until_true
from tests.chaos.wire import Exchange

_CLIENTS: Final = 24
_LOOKS: Final = 20


@attrs.frozen
class Look:
    """How much both processes hold, after so many requests."""

    requests: int
    memory: dict[str, int]
    files: dict[str, int]
    books: Scrape


async def soak(subject: Subject, requests: int, note: Callable[[Look], None]) -> None:
    """Send them, a few at a time; `note` gets a look before, twenty times on the way with nothing alive, and at the end."""
    note(await _look(subject, 0))
    bounds = [requests * share // _LOOKS for share in range(_LOOKS + 1)]
    for begin, end in itertools.pairwise(bounds):
        numbers = iter(range(begin, end))
        await asyncio.gather(*(_client(subject.port, numbers) for _ in range(_CLIENTS)))
        note(await _look(subject, end))


async def _client(port: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        await _one(port, number)


async def _one(port: int, number: int) -> None:
    draw = random.Random(number)
    kind = draw.choices(("text", "chat", "bad", "left"), (6, 3, 1, 1))[0]
    stream = draw.random() < 0.5
    body: dict[str, Any] = {"max_tokens": draw.randrange(1, 12), "stream": stream, "seed": number}
    prompt = f"{number} is a number. " * draw.randrange(1, 8)
    if kind == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if kind == "bad":
        body["temperature"] = -1
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    exchange = await Exchange.send(port, path, body)
    if kind == "left":
        await asyncio.sleep(draw.random() * 0.05)
        exchange.close(reset=stream)
        return
    await exchange.whole()
    assert exchange.status == (400 if kind == "bad" else 200), bytes(exchange.body)


async def _look(subject: Subject, requests: int) -> Look:
    await until(subject.port, lambda seen: seen.is_idle)
    http = subject.http
    await until_true(lambda: all(each.status != "ESTABLISHED" for each in http.net_connections("inet")))
    processes = {"http": subject.http, "engine": subject.engine}
    return Look(
        requests,
        {name: each.memory_info().rss for name, each in processes.items()},
        {name: each.num_fds() for name, each in processes.items()},
        await scrape(subject.port),
    )


def slope(looks: list[Look], process: str) -> float:
    """Bytes per request by which a process grew, by least squares over the second half of the looks."""
    half = looks[len(looks) // 2 :]
    xs, ys = [each.requests for each in half], [each.memory[process] for each in half]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)
