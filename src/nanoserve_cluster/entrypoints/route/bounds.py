"""How much of replicas' answers a router reads and holds: a replica that lies has no end of bytes."""

from __future__ import annotations

from typing import Final

import httpx

MOST_BYTES: Final = 64 << 20
"""Bytes of one answer that is kept until it is whole."""
MOST_TOGETHER: Final = 256 << 20
"""Bytes of all answers that are kept; beyond it each may grow to `LEAST_BYTES`, so that endless ones stop no usual one."""
LEAST_BYTES: Final = 1 << 20


class AnswerTooLargeError(httpx.TransportError):
    """An answer has more bytes than are read of it."""


class Keeping:
    """The answers that are being read whole; `num_bytes` of them are held now."""

    def __init__(self) -> None:
        self.num_bytes = 0

    async def whole(self, answer: httpx.Response, most: int | None = None) -> bytes:
        """A body as it was sent. Raises `AnswerTooLargeError` if it has more than `most` bytes, or than may be kept."""
        body = bytearray()
        try:
            async for piece in answer.aiter_raw():
                body += piece
                self.num_bytes += len(piece)
                bound = most or (MOST_BYTES if self.num_bytes <= MOST_TOGETHER else LEAST_BYTES)
                if len(body) > bound:
                    raise AnswerTooLargeError(f"an answer has more than {bound} bytes")
            return bytes(body)
        finally:
            self.num_bytes -= len(body)
