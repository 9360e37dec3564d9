"""The host's end of the connection to its parent."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Final

from nanoserve.adapters.engine_process.wire.codec import (
    FrameCutter,
    UnreadableRequestError,
    decode_command,
    encode_report,
)
from nanoserve.ports.driving import LinkClosedError
from nanoserve.ports.engine_link import Command, Refused, Report

MOST_UNSENT: Final = 64 << 20
"""Bytes of reports that may wait for a reader; beyond them nothing more is computed until it reads."""
READ_AT_ONCE: Final = 256 << 10
"""Bytes of commands taken between two turns, so that a flood of new requests does not hold up those that run."""


class SocketLink:
    """A `Link` over a stream socket. What the socket does not take at once is kept and sent bit by bit."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._frames = FrameCutter()
        self._unsent = bytearray()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    @property
    def unread(self) -> int:
        """Bytes that the socket has not taken."""
        return len(self._unsent)

    def receive(self, timeout: float | None) -> Sequence[Command]:
        """At most `READ_AT_ONCE` bytes of commands; None waits without end.

        A request that cannot be read is refused at once.
        """
        self._flush()
        while len(self._unsent) > MOST_UNSENT:
            self._wait(None, select.POLLOUT)
        if timeout is None or timeout > 0:
            self._wait(timeout, select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN)
        return self._commands(self._read())

    def send(self, report: Report) -> None:
        """Hand a report over without waiting for its reader."""
        frame = encode_report(report)
        if self._unsent:
            self._unsent += frame
            return
        sent = self._try_to_send(frame)
        if sent < len(frame):
            self._unsent += frame[sent:]

    def drain(self, timeout: float) -> None:
        """Wait up to `timeout` seconds at a time while the reader takes what was sent."""
        while self._unsent and self._wait(timeout, select.POLLOUT):
            pass

    def _wait(self, timeout: float | None, condition: int) -> bool:
        """Wait until there is something to read, or room to write; whether that came before the timeout."""
        self._poll.modify(self._socket, condition)
        happened = self._poll.poll(None if timeout is None else timeout * 1000)
        self._flush()
        return bool(happened)

    def _flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._try_to_send(self._unsent)]

    def _try_to_send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosedError(str(error)) from error

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(READ_AT_ONCE)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise LinkClosedError(str(error)) from error
        if not data:
            raise LinkClosedError("the other side has closed the connection")
        return data

    def _commands(self, data: bytes) -> Sequence[Command]:
        if not data:
            return ()
        commands = []
        for body in self._frames.feed(data):
            try:
                commands.append(decode_command(body))
            except UnreadableRequestError as error:
                self.send(Refused(error.request_id, "BadValueError", f"request: {error}"))
        return commands
