"""Sends requests, on a schedule or one after the other, and watches whether the client itself keeps up.

Open loop: every request has a moment, drawn beforehand, and is sent then, whatever is still unanswered; a server that
stalls delays every request that is due meanwhile. Closed loop: each of N clients waits for its answer before it
asks again, so a stall hides the requests that it prevented (Tene calls that coordinated omission).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import attrs

from nanoserve.entrypoints.bench.measurement import without_old_garbage
from nanoserve.entrypoints.bench.serving.connection import Connections
from nanoserve.entrypoints.bench.serving.requests import AnswerReader, RequestOutcome

HEAD_START: Final = 0.02
"""Seconds between the beginning of an open loop and its first request."""
ResultT = TypeVar("ResultT")


@attrs.frozen(kw_only=True)
class OfferedLoad:
    """Requests per second of an open loop, or the number of clients of a closed one."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        return f"{self.rate:g} req/s" if self.rate is not None else f"{self.concurrency} at once"


@attrs.frozen(kw_only=True)
class LoadRun:
    """All requests of one load.

    Attributes:
        began, ended: the clock when the first request was due, and when the last one was over.
        busy: the fraction of one core that the client needed.
    """

    outcomes: Sequence[RequestOutcome]
    began: float
    ended: float
    busy: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    @property
    def pieces_s(self) -> float:
        """Pieces of text that the client read per second."""
        return sum(len(each.arrivals) for each in self.outcomes) / self.seconds


def draw_schedule(rate: float, count: int, draw: random.Random) -> list[float]:
    """Moments of a Poisson process, in seconds, of which just `count` happen within `count / rate` seconds.

    Given their number, its moments are uniform; so the load has the rate asked for, however few requests there are.
    """
    return sorted(draw.uniform(0.0, count / rate) for _ in range(count))


async def run_open(
    connections: Connections, requests: Sequence[bytes], moments: Sequence[float], limit: float
) -> LoadRun:
    """Send each request at its moment; one that takes longer than `limit` seconds is given up."""

    async def send_all(began: float) -> list[RequestOutcome]:
        async with asyncio.TaskGroup() as group:
            sent = []
            for request, moment in zip(requests, moments, strict=True):
                due = began + moment
                await asyncio.sleep(max(due - time.perf_counter(), 0.0))
                reader = AnswerReader(RequestOutcome(scheduled=due))
                sent.append(group.create_task(ask(connections, request, reader, limit)))
        return [each.result() for each in sent]

    return await observe(send_all, HEAD_START)


async def run_closed(
    connections: Connections, requests: Sequence[bytes], clients: int, limit: float
) -> LoadRun:
    """Let so many clients share the requests, each sending its next when it has its answer."""
    left = iter(requests)
    outcomes: list[RequestOutcome] = []

    async def keep_asking() -> None:
        for request in left:
            reader = AnswerReader(RequestOutcome(scheduled=time.perf_counter()))
            outcomes.append(await ask(connections, request, reader, limit))

    async def send_all(_began: float) -> list[RequestOutcome]:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(keep_asking())
        return outcomes

    return await observe(send_all, 0.0)


def run_loop(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run the client on the fastest event loop there is; Ctrl-C ends it with `KeyboardInterrupt`."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # every connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not everywhere

        return uvloop.new_event_loop
    return asyncio.new_event_loop


async def ask(connections: Connections, request: bytes, reader: AnswerReader, limit: float) -> RequestOutcome:
    """Send one request now; whatever becomes of it within `limit` seconds is in the reader's outcome."""
    outcome = reader.outcome
    outcome.started = time.perf_counter()
    try:
        async with asyncio.timeout(limit):
            await connections.exchange(request, reader)
    except TimeoutError:
        outcome.result, outcome.message = "timeout", f"no whole answer within {limit:g} s"
    except OSError as error:
        outcome.result, outcome.message = "connection", error.strerror or str(error)
    outcome.ended = time.perf_counter()
    reader.close()
    return outcome


async def observe(send_all: Callable[[float], Awaitable[list[RequestOutcome]]], head_start: float) -> LoadRun:
    """Time `send_all`, which gets the moment of its first request, `head_start` seconds from now."""
    with without_old_garbage():
        since, processor = time.perf_counter(), time.process_time()
        outcomes = await send_all(since + head_start)
        ended, busy = time.perf_counter(), time.process_time() - processor
    return LoadRun(outcomes=outcomes, began=since + head_start, ended=ended, busy=busy / (ended - since))
