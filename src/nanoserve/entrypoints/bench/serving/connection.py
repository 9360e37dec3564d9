"""HTTP/1.1 connections that cost little per piece of a streamed answer.

A general client spends about as long on each piece as a fast server does on its token, and would then measure itself.
Here a piece costs one wake-up of the event loop, a C parser, and a clock reading; requests are bytes made in advance.
"""

# ruff: noqa: D102 - the event loop and the parser document what they call

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, cast

import httptools

from nanoserve.entrypoints.bench.serving.requests import AnswerReader
from nanoserve.entrypoints.client.server import Address

CONNECT_SECONDS: Final = 30.0


class Connection(asyncio.Protocol):
    """One kept-alive connection, which carries one exchange at a time; also what its parser calls back.

    Attributes:
        heard: whether anything of the present exchange's answer has come.
    """

    def __init__(self) -> None:
        self.heard = False
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._now = 0.0

    @property
    def is_open(self) -> bool:
        """Whether another exchange can begin."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, reader: AnswerReader) -> None:
        """Send a request and feed the answer to the reader, to its end; raises `OSError` where the connection breaks."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._reader, self.heard = reader, False
        self._body_ends_with_connection = True
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._ended
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self.heard = True
        if self._reader is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a body without a length, the failure of any other."""
        self._transport = None
        if self._reader is not None and self.heard and self._body_ends_with_connection and exc is None:
            self.on_message_complete()
        self._fail(ConnectionError(str(exc) if exc else "the server closed the connection"))

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._body_ends_with_connection = False

    def on_headers_complete(self) -> None:
        if self._reader is not None:
            self._reader.begin(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(body, self._now)

    def on_message_complete(self) -> None:
        reader, self._reader = self._reader, None
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()
        if reader is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not self._ended.done():
            self._ended.set_exception(error)
        self.close()


class Connections:
    """All connections to one server; as many as there are requests at once, used again while they stay open.

    `num_answers` is how many answers have come to their end.
    """

    def __init__(self, address: Address) -> None:
        self.num_answers = 0
        self._place = address.host, address.port
        self._tls: dict[str, Any] = {}
        if address.scheme == "https":
            self._tls = {"ssl": True, "server_hostname": address.host}
        self._idle: list[Connection] = []

    async def exchange(self, request: bytes, reader: AnswerReader) -> None:
        """One exchange over any connection; one that the server closed meanwhile is replaced. Raises `OSError`."""
        while self._idle:
            used = self._idle.pop()
            if not used.is_open:
                continue
            try:
                await self._use(used, request, reader)
            except OSError:
                if used.heard:
                    raise
            else:
                return
        await self._use(await self._open(), request, reader)

    def close(self) -> None:
        """Hang up on all idle connections."""
        for each in self._idle:
            each.close()
        self._idle.clear()

    async def _use(self, connection: Connection, request: bytes, reader: AnswerReader) -> None:
        await connection.exchange(request, reader)
        self.num_answers += 1
        if connection.is_open:
            self._idle.append(connection)

    async def _open(self) -> Connection:
        """A new connection, to the very address where the first one was answered: names are looked up once."""
        opening = asyncio.get_running_loop().create_connection(Connection, *self._place, **self._tls)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await opening
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None
        self._place = transport.get_extra_info("peername")[:2]
        return connection
