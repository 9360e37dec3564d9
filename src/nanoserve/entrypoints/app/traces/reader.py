"""Reads a trace file, plain or compressed, as far as it was written, with the engine's state at each record."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.driven import TraceError, TraceFormat
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import Snapshot, StatusChange, TraceHeader, TraceRecord, Turn

GZIP_MAGIC: Final = b"\x1f\x8b"
_PIECE: Final = 2**20
_LONGEST_HEADER: Final = 2**16
_LONGEST_LINE: Final = 2**25
"""Bytes; a snapshot of a million blocks has a quarter."""
_SHOWN: Final = 200


class TraceFile:
    """A trace on disk; iterating reads its records in order, from the beginning each time.

    Every problem is a `BadValueError` of one line that names the file: no trace, a version that is not known, line N
    broken. A last line that was cut short, as a killed process leaves it, is left out. However long a file is,
    a few megabytes of it are in memory at a time.

    Attributes:
        cut_short: whether the newest reading found the end cut off.
    """

    def __init__(self, path: str, trace_format: TraceFormat) -> None:
        self.path = path
        self.cut_short = False
        self._format = trace_format
        try:
            self.header: TraceHeader = trace_format.decode_header(self._read_header_line())
        except TraceError as error:
            raise BadValueError(path, _short(error)) from None

    def __iter__(self) -> Iterator[TraceRecord]:
        self.cut_short = False
        numbered = enumerate(self._split(), start=1)
        next(numbered)
        for number, (text, is_whole) in numbered:
            try:
                yield self._format.decode(text)
            except TraceError as error:
                if is_whole:
                    raise BadValueError(self.path, f"line {number} is broken: {_short(error)}") from None
                self.cut_short = True
                return

    def _read_header_line(self) -> bytes:
        line, is_whole = next(self._split(limit=_LONGEST_HEADER), (b"", False))
        if not line and not is_whole:
            raise BadValueError(self.path, "is empty; a step log begins with its header")
        if not is_whole:
            raise BadValueError(self.path, "is not a step log: its first line is not a complete header")
        return line

    def _split(self, *, limit: int = _LONGEST_LINE) -> Iterator[tuple[bytes, bool]]:
        """Lines, and whether each is ended by a line break; `limit`: no more than this many bytes without one."""
        rest = bytearray()
        for piece in self._pieces():
            part, *others = piece.split(b"\n")
            rest += part
            for other in others:
                yield bytes(rest), True
                rest = bytearray(other)
            if len(rest) > limit:
                raise BadValueError(self.path, f"is not a step log: a line is longer than {limit:,} bytes")
        if rest:
            yield bytes(rest), False

    def _pieces(self) -> Iterator[bytes]:
        try:
            with Path(self.path).open("rb") as file:
                is_compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
                file.seek(0)
                content = gzip.GzipFile(fileobj=file) if is_compressed else file
                with contextlib.suppress(EOFError):  # of compressed data that is cut off
                    yield from iter(lambda: content.read1(_PIECE), b"")
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BadValueError(self.path, f"its compressed data is broken: {error}") from None
        except OSError as error:
            raise BadValueError(self.path, f"cannot be read: {error.strerror or error}") from None


def _short(error: TraceError) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def walk(records: Iterable[TraceRecord]) -> Iterator[tuple[Snapshot | Turn, Replay]]:
    """Every snapshot and turn with the state after it; the state of a later pair may be the same object.

    Raises `TraceError` if a record does not fit to those before it.
    """
    replay: Replay | None = None
    for number, record in enumerate(records, start=1):
        if isinstance(record, Snapshot):
            replay = Replay(record)
        elif replay is None:
            raise TraceError("its first record is not a snapshot")
        elif isinstance(record, StatusChange):
            continue
        else:
            try:
                replay.apply(record)
            except (LookupError, TypeError, ValueError) as error:
                message = f"record {number} does not fit to those before it: {type(error).__name__} {error}"
                raise TraceError(message) from error
        yield record, replay
    if replay is None:
        raise TraceError("it only has a header")
