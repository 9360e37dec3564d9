"""What our programs read of a streamed answer, whoever sends it; everything else in a chunk is ignored."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nanoserve.entrypoints.client.errors import ProtocolError

DONE: Final = b"[DONE]"


class Delta(msgspec.Struct):
    """New text of a chat's answer."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    """One answer's part of a chunk: `text` in completions, `delta` in chats."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Tokens counted by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None

    @property
    def text(self) -> str:
        """The new text of the first answer, thoughts included."""
        if not self.choices:
            return ""
        choice = self.choices[0]
        delta = choice.delta
        said = delta and ((delta.reasoning_content or "") + (delta.content or ""))
        return choice.text or said or ""

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


def error_message(body: bytes | str | Any) -> str:
    """The message inside an error in OpenAI's shape; otherwise the beginning of what came."""
    found = body
    if isinstance(body, (bytes, str)):
        try:
            found = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = body.decode(errors="replace") if isinstance(body, bytes) else body
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        found = found["error"]
    if isinstance(found, dict) and isinstance(found.get("message"), str):
        found = found["message"]
    return " ".join(str(found).split())[:300] or "no reason given"
