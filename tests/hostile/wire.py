"""HTTP as bytes on a socket: for requests that no client library would send, and answers read without trust."""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Iterator, Mapping

import attrs

from tests.patience import PATIENCE


@attrs.frozen
class Answer:
    """One answer; `body` is put together if it came in chunks."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BrokenAnswerError(AssertionError):
    """What came is not HTTP, or ends in the middle."""


def connect(url: str) -> socket.socket:
    """A connection whose reads and writes end in `PATIENCE` seconds."""
    address = urllib.parse.urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    connection = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Reader:
    """Answers, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def answer(self, method: str = "POST") -> Answer | None:
        """The next one; None where the server has hung up without a word."""
        if not self._fill():
            return None
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status, *_ = head[0].split(" ")
        if version != "HTTP/1.1" or len(status) != 3:
            raise BrokenAnswerError(head)
        headers = {}
        for line in head[1:]:
            name, separator, value = line.partition(": ")
            if not separator or name.lower() in headers:
                raise BrokenAnswerError(head)
            headers[name.lower()] = value
        if status.startswith("1"):
            return self.answer(method)
        has_body = method != "HEAD" and status not in {"204", "304"}
        return Answer(int(status), headers, self._body(headers) if has_body else b"")

    def rest(self) -> Iterator[Answer]:
        """Every answer until the server hangs up; fails where it does not."""
        while (answer := self.answer()) is not None:
            yield answer

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(self._until(b"\r\n"), 16):
                parts.append(self._exactly(size))
                self._exactly(2)
            self._exactly(2)
            return b"".join(parts)
        return self._exactly(int(headers["content-length"]))

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            if not self._fill(more=True):
                raise BrokenAnswerError(self._buffer[:200])
        found, _, self._buffer = self._buffer.partition(end)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._fill(more=True):
                raise BrokenAnswerError(self._buffer[:200])
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _fill(self, *, more: bool = False) -> bool:
        if self._buffer and not more:
            return True
        try:
            part = self._connection.recv(65536)
        except ConnectionResetError:
            part = b""
        self._buffer += part
        return bool(part)
