"""HTTP/1.1 connections that cost little per piece of a streamed answer.

A general client spends about as long on each piece as a fast server does on its token, and would then measure itself.
Here a piece costs one wake-up of the event loop, a C parser, and a clock reading; requests are bytes made in advance.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final, Protocol, cast

import attrs
import httptools

from nanoserve.entrypoints.client.address import Address

CONNECT_SECONDS: Final = 30.0


class Reader(Protocol):
    """Takes an answer as it comes; `now` is the clock when a piece was read."""

    def begin(self, status: int) -> None:
        """The head is complete."""
        ...

    def feed(self, piece: bytes, now: float) -> None:
        """A piece of the body."""
        ...


class Connection(asyncio.Protocol):
    """One kept-alive connection, which carries one exchange at a time.

    Attributes:
        heard: whether anything of the present exchange's answer has come.
    """

    def __init__(self) -> None:
        self.heard = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: Reader | None = None
        self._ended: asyncio.Future[None] | None = None
        self._now = 0.0
        self._body_ends_with_connection = True

    @property
    def is_open(self) -> bool:
        """Whether another exchange can begin."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, reader: Reader) -> None:
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
        """As the event loop says."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """As the event loop says."""
        self._now = time.perf_counter()
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """As the event loop says; the end of a body without a length, the failure of any other."""
        self._transport = None
        if self._reader is not None and self.heard and self._body_ends_with_connection and exc is None:
            self.on_message_complete()
        self._fail(ConnectionError(str(exc) if exc else "the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """As the parser says."""
        del value
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._body_ends_with_connection = False

    def on_headers_complete(self) -> None:
        """As the parser says."""
        if self._reader is not None:
            self._reader.begin(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        """As the parser says."""
        if self._reader is not None:
            self._reader.feed(body, self._now)

    def on_message_complete(self) -> None:
        """As the parser says."""
        self._reader = None
        if self._transport is not None and not self._parser.should_keep_alive():
            self._transport.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._reader = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
        self.close()


@attrs.define
class Connections:
    """All connections to one server; as many as there are requests at once, used again while they stay open."""

    address: Address
    _idle: list[Connection] = attrs.field(factory=list)
    _found: tuple[str, int] | None = None
    _tls: ssl.SSLContext | None = attrs.field(
        default=attrs.Factory(
            lambda self: ssl.create_default_context() if self.address.scheme == "https" else None,
            takes_self=True,
        )
    )

    async def exchange(self, request: bytes, reader: Reader) -> None:
        """One exchange over any connection; one that the server closed meanwhile is replaced. Raises `OSError`."""
        while (used := self._take()) is not None:
            try:
                await used.exchange(request, reader)
            except OSError:
                if used.heard:
                    raise
                continue
            self._keep(used)
            return
        fresh = await self._open()
        await fresh.exchange(request, reader)
        self._keep(fresh)

    def close(self) -> None:
        """Hang up on all idle connections."""
        for each in self._idle:
            each.close()
        self._idle.clear()

    def _take(self) -> Connection | None:
        while self._idle:
            used = self._idle.pop()
            if used.is_open:
                return used
        return None

    def _keep(self, used: Connection) -> None:
        if used.is_open:
            self._idle.append(used)

    async def _open(self) -> Connection:
        """A new connection, to the very address where the first one was answered: names are looked up once."""
        host, port = self._found or (self.address.host, self.address.port)
        loop = asyncio.get_running_loop()
        name = self.address.host if self._tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await loop.create_connection(
                    Connection, host, port, ssl=self._tls, server_hostname=name
                )
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None
        self._found = transport.get_extra_info("peername")[:2]
        return connection
