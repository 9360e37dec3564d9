"""Sends requests over HTTP/1.1 at little cost per piece of a streamed answer, and writes down what became of each.

A general client spends about as long on each piece as a fast server does on its token, and would then measure itself.
Here a piece costs a read from a stream, a C parser, and a clock reading; requests are bytes made in advance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import attrs
import httptools

from nanoserve.entrypoints.client.server import (
    DONE,
    Address,
    EventReader,
    ProtocolError,
    ServerRefusedError,
    error_message,
    read_chunk,
)

CONNECT_SECONDS: Final = 30.0
READ_BYTES: Final = 65_536
MOST_OF_AN_ERROR: Final = 65_536
OK: Final = "ok"


@attrs.define(kw_only=True)
class Outcome:
    """What became of one request: clock readings in seconds.

    Latencies count from the moment that the schedule gave, not from the sending.

    Attributes:
        scheduled: when it was to be sent.
        started: when the client got round to it; what is between is the client's fault.
        arrivals: when each piece of text came.
        ended: when the answer was complete, or failed.
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
    _events: EventReader = attrs.field(factory=EventReader, init=False)
    _error: bytes = attrs.field(default=b"", init=False)
    _is_whole: bool = attrs.field(default=False, init=False)

    def feed(self, piece: bytes, now: float) -> None:
        """A piece of the body, read at `now`."""
        if self.result != OK:
            self._error = (self._error + piece)[:MOST_OF_AN_ERROR]
            return
        try:
            for data in self._events.feed(piece):
                if data != DONE:
                    self._read(data, now)
        except ProtocolError as error:
            self.result, self.message = "protocol", str(error)
        except ServerRefusedError as error:
            self.result, self.message = "in-band error", str(error)

    def _read(self, data: bytes, now: float) -> None:
        """A piece of text counts when it came; so does the end of an answer that shows no text at all."""
        chunk = read_chunk(data)
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
            self.message = error_message(self._error)
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


class Connection:
    """One connection, which carries one exchange at a time; also what its parser calls back.

    Attributes:
        heard: whether anything of the present exchange's answer has come.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = False
        self._reader, self._writer = reader, writer

    @property
    def is_open(self) -> bool:
        """Whether another exchange can begin."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def exchange(self, request: bytes, answer: Outcome) -> None:
        """Send a request and feed the answer, to its end; raises `OSError` where the connection breaks."""
        self._parser, self._answer = httptools.HttpResponseParser(self), answer
        self.heard = self._is_complete = self._is_kept = self._has_length = False
        try:
            self._writer.write(request)
            while not self._is_complete and (data := await self._reader.read(READ_BYTES)):
                self._now, self.heard = time.perf_counter(), True
                self._parser.feed_data(data)
            if not self._is_complete and (self._has_length or not self.heard):
                raise ConnectionError("the server closed the connection")
        except httptools.HttpParserError as error:
            raise ConnectionError(f"no HTTP answer: {error}") from None
        finally:
            if not self._is_kept:
                self.close()

    def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()

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
        self._is_complete, self._is_kept = True, self._parser.should_keep_alive()


class Connections:
    """All connections to one server; as many as there are requests at once, used again while they stay open.

    `num_answers` is how many answers have come to their end.
    """

    def __init__(self, address: Address) -> None:
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
                reader, writer = await asyncio.open_connection(self._host, self._port, **self._tls)
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None
        self._host = writer.get_extra_info("peername")[0]
        return Connection(reader, writer)
