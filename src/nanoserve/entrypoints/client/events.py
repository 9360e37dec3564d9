"""Cuts the body of an event stream into its events, as the WHATWG's standard describes them."""

from __future__ import annotations

from nanoserve.entrypoints.client.errors import ProtocolError


class EventData:
    """Takes a body in pieces of any size; comments and fields other than `data` are dropped."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._lines: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that this piece completes."""
        lines = (self._unfinished + piece).split(b"\n")
        self._unfinished = lines.pop()
        events = []
        for each in lines:
            line = each.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines.clear()
        return events


class NamedEvents:
    """As `EventData`, with the name of each event; `message` where it has none.

    Args:
        longest: bytes that an event may have; `feed` raises `ProtocolError` beyond.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._unfinished = b""
        self._name = "message"
        self._lines: list[bytes] = []
        self._held = 0  # bytes of `_lines`: adding them up at every piece would be quadratic

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """The name and the data of every event that this piece completes."""
        lines = (self._unfinished + piece).split(b"\n")
        self._unfinished = lines.pop()
        events = []
        for each in lines:
            line = each.removesuffix(b"\r")
            field, _, value = line.partition(b":")
            if field == b"data":
                self._lines.append(value.removeprefix(b" "))
                self._held += len(line)
            elif field == b"event":
                self._name = value.removeprefix(b" ").decode(errors="replace")
            elif not line:
                if self._lines:
                    events.append((self._name, b"\n".join(self._lines)))
                self._name, self._lines, self._held = "message", [], 0
        if len(self._unfinished) + self._held > self._longest:
            raise ProtocolError(f"the server sends an event of more than {self._longest:,} bytes")
        return events
