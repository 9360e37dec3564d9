"""The port to the form in which a step log is written: a header, then one line per record."""

from __future__ import annotations

from typing import Protocol

from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.trace import TraceHeader, TraceRecord


class TraceError(NanoserveError):
    """These bytes are no line of a step log, or of a version that is not known."""


class TraceFormat(Protocol):
    """Records to lines and back; stateless. Lines hold no line break."""

    def encode_header(self, header: TraceHeader, /) -> bytes:
        """The first line."""
        ...

    def decode_header(self, line: bytes, /) -> TraceHeader:
        """Raises `TraceError`."""
        ...

    def encode(self, record: TraceRecord, /) -> bytes:
        """Any other line."""
        ...

    def decode(self, line: bytes, /) -> TraceRecord:
        """Raises `TraceError`."""
        ...
