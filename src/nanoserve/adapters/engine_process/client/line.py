"""One end of a connection between two processes of a server: whole frames go out, the bodies of frames come in."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from typing import cast

import attrs
import structlog

from nanoserve.adapters.engine_process.wire.codec import FrameCutter, WireError


@attrs.define(eq=False)
class Line(asyncio.Protocol):
    """Sends until the connection is lost, and cuts off a peer that cannot be understood or does not read. What one that has ended had sent is taken.

    Args:
        take: called with each body; raises `WireError` for one that no correct peer sends.
        peer: the name of the other end in the log.
        most_unread: bytes that may wait for the peer to read them.
    """

    _take: Callable[[bytes], None]
    _peer: str = attrs.field(kw_only=True)
    _most_unread: float = attrs.field(default=math.inf, kw_only=True)
    _on_lost: Callable[[], None] = attrs.field(default=lambda: None, kw_only=True)
    gone: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _frames: FrameCutter = attrs.field(factory=FrameCutter, init=False)
    _twin: socket.socket = attrs.field(init=False)
    _transport: asyncio.WriteTransport | None = attrs.field(default=None, init=False)

    async def open(self, connection: socket.socket) -> None:
        """Read and write this connection from now on."""
        self._twin = connection.dup()
        self._twin.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connection)

    def send(self, frame: bytes) -> None:
        """Hand a frame over without waiting for its reader; ignored where there is no connection any more."""
        if self._transport is None or self.gone.is_set():
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > self._most_unread:
            structlog.get_logger().error("a process does not read and is cut off", peer=self._peer)
            self.cut_off()

    def close(self) -> None:
        """End the connection once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def cut_off(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        with self._twin, contextlib.suppress(OSError):
            while error is not None and (data := self._twin.recv(1 << 16)):  # where a write has failed
                self.data_received(data)
        self.gone.set()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._take(body)
        except WireError as error:
            structlog.get_logger().exception(
                "a process cannot be understood", peer=self._peer, error=str(error)
            )
            self.cut_off()
