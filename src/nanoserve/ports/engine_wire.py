"""The port to the form in which commands and reports travel between two processes: whole frames of bytes.

It does no input or output: the owner of the connection reads and writes, the wire says what the bytes mean.
"""

from __future__ import annotations

from typing import Protocol

from nanoserve.ports.engine_link import Command, Report
from nanoserve.ports.errors import NanoserveError


class WireError(NanoserveError):
    """Bytes arrived that no correct peer sends; the connection cannot be trusted any further."""


class UnreadableRequestError(NanoserveError):
    """One request arrived in a form that cannot be read; the connection is sound."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id


class Frames(Protocol):
    """Cuts the bytes of one direction of one connection into frames."""

    def feed(self, data: bytes, /) -> list[bytes]:
        """Take bytes as they come, return the bodies that are complete now; `WireError` for one beyond the bound."""


class EngineWire(Protocol):
    """Values to frames, and bodies of frames to values."""

    def frames(self) -> Frames:
        """A cutter that has seen nothing yet."""

    def encode_command(self, command: Command, /) -> bytes:
        """A whole frame; raises `BadValueError` for values that no frame can hold."""

    def decode_command(self, body: bytes, /) -> Command:
        """Raises `UnreadableRequestError` or `WireError`."""

    def address(self, body: bytes, /) -> tuple[str, str]:
        """The name of a value's class, and whose it is as `owner_of` says; raises `WireError`. Reads no more than that."""

    def framed(self, body: bytes, /) -> bytes:
        """The frame around a body that came in one."""

    def encode_report(self, report: Report, /) -> bytes:
        """A whole frame; raises `BadValueError` for values that no frame can hold."""

    def decode_report(self, body: bytes, /) -> Report:
        """Raises `WireError`."""
