"""A request that one process has taken and another one answers: the messages of ASGI over a connection of its own.

The connection is a pair of Unix sockets without a name; one end is handed through a door, which is such a pair too. A slow
client holds back the process that answers it, and a client or a process that leaves ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any, Final

import msgspec
import structlog
from litestar.types import ASGIApp, Receive, Scope, Send

from nanoserve.entrypoints.server.http.sse import end

_LENGTH: Final = struct.Struct(">I")
_SENT: Final = (
    *("type", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
    *("root_path", "headers", "client", "server"),
)
"""The fields of a scope that say what is asked; the others are made again."""
_KNOCK: Final = b"."
_END: Final = None
_UNREAD: Final = 1 << 16


class Relay:
    """An application that has its requests answered by the process at the other end of the door."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send on what comes, either way, until the answer has ended."""
        reader, writer = await self._connect()
        _write(writer, {name: value for name, value in scope.items() if name in _SENT})
        asking = asyncio.ensure_future(_send_on(receive, writer))
        try:
            while (message := await _read(reader)) is not None:
                await send(message)
        finally:
            await end(asking)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._door, [_KNOCK], [theirs.fileno()])
        return await asyncio.open_unix_connection(sock=ours)


async def _send_on(receive: Receive, writer: asyncio.StreamWriter) -> None:
    message: Any = None
    while message is None or message["type"] != "http.disconnect":
        message = await receive()
        _write(writer, message)
        await writer.drain()


class RelayedApp:
    """Answers what comes through doors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answering: set[asyncio.Task[None]] = set()

    def watch(self, door: socket.socket) -> None:
        """Answer what comes through a door, until `leave`."""
        door.setblocking(False)
        asyncio.get_running_loop().add_reader(door, self._let_in, door)

    def leave(self, door: socket.socket) -> None:
        """Close a door, which may be closed; what came through it before is answered still."""
        if door.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(door)
            door.close()

    def _let_in(self, door: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            knock, descriptors, _, _ = socket.recv_fds(door, len(_KNOCK), 1)
            for each in descriptors:
                task = asyncio.ensure_future(self._answer(socket.socket(fileno=each)))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            if not knock:  # the other process has ended
                asyncio.get_running_loop().remove_reader(door)

    async def _answer(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)

        async def receive() -> Any:
            return await _read(reader) or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            _write(writer, message)
            await writer.drain()

        try:
            if (scope := await _read(reader)) is not None:
                await self._app(_whole(scope), receive, send)
        except ConnectionError:
            structlog.get_logger().debug("a client has left, or the process that had its request")
        except Exception as error:  # noqa: BLE001 - an answer without its end tells the other process
            structlog.get_logger().error("a request could not be answered", exc_info=error)
        with contextlib.suppress(ConnectionError):
            _write(writer, _END)
            while await reader.read(_UNREAD):  # hanging up first would throw away what is on its way
                pass
        writer.close()


def _whole(sent: dict[str, Any]) -> Any:
    """A scope as a server makes it, from the fields that were sent."""
    return {
        **sent,
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "headers": [(name, value) for name, value in sent["headers"]],
        "client": sent["client"] and tuple(sent["client"]),
        "server": sent["server"] and tuple(sent["server"]),
        "state": {},
    }


def _write(writer: asyncio.StreamWriter, message: Any) -> None:
    body = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(body)) + body)


async def _read(reader: asyncio.StreamReader) -> Any:
    """The next message; None behind the last one."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return msgspec.msgpack.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
