"""Frames: four bytes of length, most significant first, then a body of that many bytes, up to a bound."""

from __future__ import annotations

import struct
from typing import Final

from nanoserve.ports.engine_wire import WireError
from nanoserve.ports.errors import BadValueError

MAX_BODY: Final = 256 << 20
"""Bytes. The longest honest body is a long prompt's log-probabilities: 128k positions of 20 tokens take 40 MB."""

_LENGTH: Final = struct.Struct(">I")


def framed(body: bytes) -> bytes:
    """The frame around a body; raises `BadValueError` for one that no peer would accept."""
    if len(body) > MAX_BODY:
        raise BadValueError(
            "request", f"takes {len(body)} bytes on the wire, which carries at most {MAX_BODY}"
        )
    return _LENGTH.pack(len(body)) + body


class FrameCutter:
    """Collects bytes until frames are whole. A frame that announces too much is refused before it is collected."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._pending = bytearray()

    def feed(self, data: bytes, /) -> list[bytes]:
        """The bodies that are whole now, in order; raises `WireError` for a length beyond the bound."""
        pending = self._pending
        pending += data
        bodies, start = [], 0
        while len(pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            if length > self._max_body:
                raise WireError(f"a frame of {length} bytes was announced, the bound is {self._max_body}")
            first = start + _LENGTH.size
            if len(pending) - first < length:
                break
            start = first + length
            bodies.append(bytes(pending[first:start]))
        del pending[:start]
        return bodies
