"""Makes requests and sends them, on a schedule or one after the other, and watches whether the client itself keeps up.

Open loop: every request has a moment, drawn beforehand, and is sent then, whatever is still unanswered; a server that
stalls delays every request that is due meanwhile. Closed loop: at most N requests are unanswered, so a stall hides the
requests that it prevented (Tene calls that coordinated omission).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import msgspec

from nanoserve.entrypoints.bench.measurement import without_old_garbage
from nanoserve.entrypoints.bench.serving.client import Connections, Outcome
from nanoserve.entrypoints.client.server import Address

HEAD_START: Final = 0.02
"""Seconds between the beginning of an open loop and its first request."""
_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body"
)
WORDS: Final = tuple(_TEXT.split())
"""Mostly one token each."""
PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
ResultT = TypeVar("ResultT")


@attrs.frozen(kw_only=True)
class RequestShape:
    """What every request of a load has in common.

    Attributes:
        vocab_size: prompts of ids are drawn below this; None draws words, for servers that take no ids.
        fields: sampling parameters, sent as they are.
    """

    address: Address
    endpoint: str
    model: str
    input_len: int
    output_len: int
    vocab_size: int | None
    fields: Mapping[str, Any]

    def draw(self, draw: random.Random) -> bytes:
        """One request with a prompt of its own."""
        if self.endpoint == "completions" and self.vocab_size is not None:
            return self.request({"prompt": draw.choices(range(self.vocab_size), k=self.input_len)})
        text = " ".join(draw.choices(WORDS, k=self.input_len))
        is_chat = self.endpoint == "chat"
        return self.request(
            {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        )

    def request(self, prompt: Mapping[str, Any]) -> bytes:
        """The bytes of one request."""
        usual = {"max_tokens": self.output_len, "stream": True, "stream_options": {"include_usage": True}}
        content = msgspec.json.encode({"model": self.model, **prompt, **usual, **self.fields})
        headers = {
            "host": self.address.origin.partition("://")[2],
            "content-type": "application/json",
            "accept": "text/event-stream",
            "content-length": str(len(content)),
            **self.address.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.address.prefix}{PATHS[self.endpoint]} HTTP/1.1\r\n{head}\r\n".encode() + content


@attrs.frozen(kw_only=True)
class OfferedLoad:
    """Requests per second of an open loop, or the most that are unanswered in a closed one."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        return f"{self.rate:g} req/s" if self.rate is not None else f"{self.concurrency} at once"


@attrs.frozen(kw_only=True)
class LoadRun:
    """All requests of one load; `began` is the clock when the first one was due, `busy` the fraction of a core that the client needed."""

    answers: Sequence[Outcome]
    began: float
    seconds: float
    busy: float

    @property
    def pieces_s(self) -> float:
        """Pieces of text that the client read per second."""
        return sum(len(each.arrivals) for each in self.answers) / self.seconds


def draw_schedule(rate: float, count: int, draw: random.Random) -> list[float]:
    """Moments of a Poisson process, in seconds, of which just `count` happen within `count / rate` seconds.

    Given their number, its moments are uniform; so the load has the rate asked for, however few requests there are.
    """
    return sorted(draw.uniform(0.0, count / rate) for _ in range(count))


async def send_load(
    connections: Connections,
    requests: Sequence[bytes],
    limit: float,
    *,
    moments: Sequence[float] = (),
    at_once: int = 0,
) -> LoadRun:
    """Send each request at its moment or, without moments, so many at once; one that takes longer than `limit` seconds is given up."""
    slots = asyncio.Semaphore(len(requests) if moments else at_once)

    async def send_all(began: float) -> list[Outcome]:
        answers = []

        async def send(request: bytes, due: float | None) -> None:
            async with slots:
                answer = Outcome(scheduled=due or time.perf_counter())
                answers.append(answer)
                await connections.ask(request, answer, limit)

        async with asyncio.TaskGroup() as group:
            for place, request in enumerate(requests):
                due = began + moments[place] if moments else None
                await asyncio.sleep(max((due or 0.0) - time.perf_counter(), 0.0))
                group.create_task(send(request, due))
        return answers

    return await observe(send_all, HEAD_START if moments else 0.0)


async def observe(send_all: Callable[[float], Awaitable[Sequence[Outcome]]], head_start: float) -> LoadRun:
    """Time `send_all`, which gets the moment of its first request, `head_start` seconds from now."""
    with without_old_garbage():
        began, processor = time.perf_counter() + head_start, time.process_time()
        answers = await send_all(began)
        seconds, busy = time.perf_counter() - began, time.process_time() - processor
    return LoadRun(answers=answers, began=began, seconds=seconds, busy=busy / (seconds + head_start))


def run_loop(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run the client on the fastest event loop there is; Ctrl-C ends it with `KeyboardInterrupt`."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # every connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    make_loop = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as make_loop  # noqa: PLC0415 - not everywhere
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(work)
