"""Sends requests over HTTP/1.1 at little cost per piece of a streamed answer, and writes down the result of each.

A general client spends about as long on each piece as a fast server does on its token, and would then measure itself.
Here a piece costs a read from a stream, a C parser, and a clock reading; requests are bytes made in advance.

Open loop: every request has a moment, drawn beforehand, and is sent then, whatever is still unanswered; a server that
stalls delays every request that is due meanwhile. Closed loop: at most N requests are unanswered, so a stall hides the
requests that it prevented (Tene calls that coordinated omission).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

import attrs
import httptools
import msgspec

from nanoserve.entrypoints.client import server
from nanoserve.entrypoints.compose.interrupts import cancelling_interrupts
from nanoserve.entrypoints.compose.process import without_full_collections

CONNECT_SECONDS: Final = 30.0
MOST_OF_AN_ERROR: Final = 65_536
OK: Final = "ok"


@attrs.define(kw_only=True)
class Outcome:
    """The course of one request: clock readings in seconds.

    Latencies count from the moment that the schedule gave, not from the sending.

    Attributes:
        started: when the client got round to it; what is between is the client's fault.
        result: `ok`, the HTTP status of a refusal, or `timeout`, `connection`, `broken off`, `in-band error`, `protocol`.
        message: what the server, or the system, said of a failure.
        prompt_tokens, output_tokens: as the server counts them; output falls back on the pieces.
    """

    scheduled: float
    started: float = 0.0
    arrivals: list[float] = attrs.field(factory=list)
    ended: float = 0.0
    result: str = OK
    message: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    _events: server.EventReader = attrs.field(factory=server.EventReader, init=False)
    _error: bytes = attrs.field(default=b"", init=False)
    _is_whole: bool = attrs.field(default=False, init=False)

    def feed(self, piece: bytes, now: float) -> None:
        """A piece of the body, read at `now`."""
        if self.result != OK:
            self._error = (self._error + piece)[:MOST_OF_AN_ERROR]
            return
        try:
            for data in self._events.feed(piece):
                if data != server.DONE:
                    self._read(data, now)
        except server.ProtocolError as error:
            self.result, self.message = "protocol", str(error)
        except server.ServerRefusedError as error:
            self.result, self.message = "in-band error", str(error)

    def _read(self, data: bytes, now: float) -> None:
        """A piece of text counts when it came; so does the end of an answer that shows no text at all."""
        chunk = server.read_chunk(data)
        ends = chunk.choice.finish_reason is not None
        self._is_whole |= ends
        if chunk.said or chunk.thought or (ends and not self.arrivals):
            self.arrivals.append(now)
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.output_tokens = chunk.usage.completion_tokens

    def close(self) -> None:
        """The exchange is over: say why it failed, if it did."""
        self.ended = time.perf_counter()
        if self.result == OK and not self._is_whole:
            self.result = "broken off"
        elif self.result.isdigit():
            self.message = server.error_message(self._error)
        self.output_tokens = self.output_tokens or len(self.arrivals)

    @property
    def latencies(self) -> Mapping[str, float]:
        """In milliseconds, of an answer that is complete: ttft, e2e, and tpot and the longest itl where there are two pieces."""
        found = {"ttft": self.arrivals[0] - self.scheduled, "e2e": self.ended - self.scheduled}
        if len(self.arrivals) > 1:
            found["tpot"] = (self.arrivals[-1] - self.arrivals[0]) / max(self.output_tokens - 1, 1)
            found["itl"] = max(self.gaps)
        return {name: 1e3 * seconds for name, seconds in found.items()}

    @property
    def gaps(self) -> list[float]:
        """Seconds between a piece and the next."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    def record(self, origin: float) -> dict[str, Any]:
        """For the JSON file, in milliseconds since `origin`."""
        moments = {name: getattr(self, name) for name in ("scheduled", "started", "ended")}
        return {
            **{name: round(1e3 * (moment - origin), 3) for name, moment in moments.items()},
            "arrivals": [round(1e3 * (each - origin), 3) for each in self.arrivals],
            **{name: getattr(self, name) for name in ("result", "message", "prompt_tokens", "output_tokens")},
        }


class Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time; also what its parser calls back. `heard`: some of the exchange's answer has come.

    Data is read in the callback: waking a task for each piece would double the cost.
    """

    def __init__(self) -> None:
        self.heard = self._has_length = False
        self._transport: Any = None
        self._over: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """True if another exchange can begin."""
        return self._over is None and not self._transport.is_closing()

    async def exchange(self, request: bytes, answer: Outcome) -> None:
        """Send a request and feed the answer, to its end; raises `OSError` if the connection breaks."""
        self._parser, self._answer = httptools.HttpResponseParser(self), answer
        self.heard = self._is_kept = self._has_length = False
        if not self.is_open:
            raise ConnectionError("the server closed the connection")
        self._over = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            await self._over
        finally:
            self._over = None
            if not self._is_kept:
                self.close()

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio; data outside of an exchange ends the connection."""
        if self._over is None:
            self.close()
            return
        self._now, self.heard = time.perf_counter(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio; a body without a length ends so."""
        if exc is None and (self._has_length or not self.heard):
            exc = ConnectionError("the server closed the connection")
        self._end(exc)

    def _end(self, error: Exception | None = None) -> None:
        if self._over is not None and not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)

    def on_header(self, name: bytes, _value: bytes) -> None:
        """Without either of these, a body ends with the connection."""
        self._has_length |= name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        """Only 200 is an answer."""
        if (status := self._parser.get_status_code()) != 200:
            self._answer.result = str(status)

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        self._answer.feed(body, self._now)

    def on_message_complete(self) -> None:
        """The end of the answer."""
        self._is_kept = self._parser.should_keep_alive()
        self._end()


class Connections:
    """All connections to one server; as many as there are requests at once, used again while they stay open.

    `num_answers` counts complete answers.
    """

    def __init__(self, address: server.Address) -> None:
        self.num_answers = 0
        self._host, self._port = address.host, address.port
        is_secure = address.scheme == "https"
        self._tls: dict[str, Any] = {"ssl": True, "server_hostname": address.host} if is_secure else {}
        self._idle: list[Connection] = []

    async def ask(self, request: bytes, answer: Outcome, limit: float) -> None:
        """Send one request now; whatever becomes of it within `limit` seconds is in the answer."""
        answer.started = time.perf_counter()
        try:
            async with asyncio.timeout(limit):
                await self._exchange(request, answer)
        except TimeoutError:
            answer.result, answer.message = "timeout", f"no whole answer within {limit:g} s"
        except OSError as error:
            answer.result, answer.message = "connection", error.strerror or str(error)
        answer.close()

    def close(self) -> None:
        """Hang up on all idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, request: bytes, answer: Outcome) -> None:
        """Over any connection; one that the server closed meanwhile is replaced."""
        while True:
            used = self._idle.pop() if self._idle else None
            connection = used or await self._open()
            try:
                await connection.exchange(request, answer)
                break
            except OSError:
                if connection is not used or used.heard:
                    raise
        self.num_answers += 1
        if connection.is_open:
            self._idle.append(connection)

    async def _open(self) -> Connection:
        """A new connection, to the very address where the first one was answered: names are looked up once."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                loop = asyncio.get_running_loop()
                transport, connection = await loop.create_connection(
                    Connection, self._host, self._port, **self._tls
                )
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None
        self._host = transport.get_extra_info("peername")[0]
        return connection


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
    """The shape that all requests of a load share; `vocab_size` None draws words, for servers that take no ids."""

    address: server.Address
    endpoint: str
    model: str
    input_len: int
    output_len: int
    vocab_size: int | None
    fields: Mapping[str, Any]

    def draw(self, draw: random.Random) -> bytes:
        """One request with a random prompt."""
        return self.ask(draw.choices(range(self.vocab_size or len(WORDS)), k=self.input_len))

    def ask(self, tokens: Sequence[int]) -> bytes:
        """One request for these ids, or for a word for each of them where the server gets words."""
        if self.endpoint == "completions" and self.vocab_size is not None:
            return self.request({"prompt": tokens})
        text = " ".join(WORDS[token % len(WORDS)] for token in tokens)
        if self.endpoint == "chat":
            return self.request({"messages": [{"role": "user", "content": text}]})
        return self.request({"prompt": text})

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
    """Requests per second of an open loop, or the most that are unanswered in a closed one; neither where requests have times of their own."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} req/s"
        return "the trace's times" if self.concurrency is None else f"{self.concurrency} at once"


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
    gc.collect()
    with without_full_collections():
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
    with cancelling_interrupts(), asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(work)
