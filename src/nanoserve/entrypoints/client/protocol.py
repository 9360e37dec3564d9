"""What comes over the wire from a server that speaks OpenAI's protocol: events, chunks of answers, errors."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nanoserve.ports.errors import NanoserveError

DONE: Final = b"[DONE]"
MOST_EVENT_BYTES: Final = 2**20


class UnreachableError(NanoserveError):
    """Nothing answers at the address, or the connection broke."""


class ProtocolError(NanoserveError):
    """The server's answer is not what OpenAI's protocol says."""


class ServerRefusedError(NanoserveError):
    """The server answered with an error; `status` is its number, None for one inside a stream."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EventReader:
    """Cuts the body of an event stream into its events, as the WHATWG's standard describes them.

    Args:
        longest: bytes that an event may have; `feed` raises `ProtocolError` beyond.
    """

    def __init__(self, longest: int = MOST_EVENT_BYTES) -> None:
        self._longest = longest
        self._unfinished = b""
        self._name = b"message"
        self._lines: list[bytes] = []
        self._held = 0  # bytes of `_lines`: adding them up at every piece would be quadratic

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The name (`message` where it has none) and the data of every event that this piece completes."""
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        events = []
        for each in lines:
            line = each.removesuffix(b"\r")
            field, _, value = line.partition(b":")
            if field == b"data":
                self._lines.append(value.removeprefix(b" "))
                self._held += len(line)
            elif field == b"event":
                self._name = value.removeprefix(b" ")
            elif not line:
                if self._lines:
                    events.append((self._name, b"\n".join(self._lines)))
                self._name, self._lines, self._held = b"message", [], 0
        if len(self._unfinished) + self._held > self._longest:
            raise ProtocolError(f"the server sends an event of more than {self._longest:,} bytes")
        return events


class ChunkDelta(msgspec.Struct):
    """New text of a chat's answer."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct):
    """One answer's part of a chunk: `text` in completions, `delta` in chats."""

    text: str | None = None
    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class ChunkUsage(msgspec.Struct):
    """Tokens counted by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a streamed answer; fields that are not listed here are ignored."""

    choices: list[ChunkChoice] = []
    usage: ChunkUsage | None = None
    error: Any = None

    @property
    def text(self) -> str:
        """The new text of the first answer, thoughts included."""
        return self.thought + self.said

    @property
    def thought(self) -> str:
        """The new reasoning of the first answer, which servers call by either name or by both."""
        delta = self.choices[0].delta if self.choices else None
        return "" if delta is None else delta.reasoning_content or delta.reasoning or ""

    @property
    def said(self) -> str:
        """The new text of the first answer."""
        if not self.choices:
            return ""
        choice = self.choices[0]
        return choice.text or (choice.delta.content if choice.delta else None) or ""

    @property
    def finish_reason(self) -> str | None:
        """Why the first answer ended, in its last chunk."""
        return self.choices[0].finish_reason if self.choices else None


_DECODER: Final = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Decode one event; raises `ProtocolError`."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the server sent an event that is no chunk ({error}): {data[:200]!r}") from None


def error_message(body: bytes | Any) -> str:
    """The message inside an error in OpenAI's shape; otherwise the beginning of what came."""
    found = body
    if isinstance(body, bytes):
        try:
            found = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = body.decode(errors="replace")
    for name in ("error", "message"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return " ".join(str(found).split())[:300] or "no reason given"


def refusal(status: int, body: bytes) -> ServerRefusedError:
    """The error that an answer of this status is, with the hint that helps."""
    hint = "; give it with --api-key or in OPENAI_API_KEY" if status == 401 else ""
    return ServerRefusedError(f"the server answered {status}: {error_message(body)}{hint}", status)
