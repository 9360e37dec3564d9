"""Writes a step log to a file, so that whatever ends the process leaves a trace that can be read up to there."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from nanoserve.ports.driven import Tokenizer, TraceFormat
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import TraceHeader, TraceRecord

GZIP_SUFFIX: Final = ".gz"
FLUSH_SECONDS: Final = 0.25
"""A compressed file is flushed this often at most: each flush costs bytes and time."""


def check_trace_path(path: str, *, name: str = "trace") -> None:
    """Raise `BadValueError` about setting `name` where no file could be written; leaves everything as it was."""
    try:
        existed = Path(path).exists()
        if existed and not (Path(path).is_file() or Path(path).is_char_device() or Path(path).is_dir()):
            raise BadValueError(name, f"{path} is a pipe or a socket; name a file")
        with Path(path).open("ab") as file:
            _claim(file)
        if not existed:
            Path(path).unlink()
    except BlockingIOError:
        raise BadValueError(name, f"another process writes {path}; name another file") from None
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}; name a file in a folder that exists"
        raise BadValueError(name, message) from None


def _claim(file: BinaryIO, *, emptied: bool = False) -> None:
    """Keep others from claiming a file, unless it is a terminal or the like, while it is open; if one has it, close it and raise `BlockingIOError`."""
    try:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if emptied:
                file.truncate(0)
    except OSError:
        file.close()
        raise


class TraceWriter:
    """A new trace in a file that is replaced if it exists; compressed where its name ends in `.gz`.

    A file that is made for a trace with words can be read by its owner only.

    What was written is handed to the operating system at once (compressed: after `FLUSH_SECONDS` at the latest, as
    long as more is written), so a killed process loses no more than its last lines. Raises `OSError`.
    """

    def __init__(self, path: str, header: TraceHeader, trace_format: TraceFormat) -> None:
        self._format = trace_format
        opener = (lambda name, flags: os.open(name, flags, 0o600)) if header.has_words else None
        self._file: BinaryIO = open(path, "ab", opener=opener)  # noqa: SIM115 - closed by `close`
        _claim(self._file, emptied=True)
        self._lines: BinaryIO | gzip.GzipFile = self._file
        if path.endswith(GZIP_SUFFIX):
            self._lines = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=6)
        self._flushed = -FLUSH_SECONDS
        try:
            self.write_lines([trace_format.encode_header(header)])
        except OSError as error:  # of a full disk, which does not say where
            with contextlib.suppress(OSError):
                self.close()
            raise OSError(error.errno, error.strerror, path) from None

    def write(self, records: Iterable[TraceRecord]) -> None:
        """Append records."""
        self.write_lines([self._format.encode(each) for each in records])

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Append records that are written out already, without the line break behind each."""
        if not lines:
            return
        self._lines.write(b"\n".join([*lines, b""]))
        if self._lines is self._file or time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._lines.flush()
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Write the remaining records; may be called twice."""
        try:
            self._lines.close()
        finally:
            self._file.close()


class Recording:
    """The log of an engine from now on, until `close`. A full disk ends the trace and not the run.

    Args:
        engine: is between two turns.
        writer: of a new file; closed here.
        tokenizer: turns what is asked and answered into text; None leaves the text out.
    """

    def __init__(self, engine: EngineHandle, writer: TraceWriter, tokenizer: Tokenizer | None = None) -> None:
        self._engine = engine
        self._writer: TraceWriter | None = writer
        self._recorder = engine.record(tokenizer)
        writer.write([self._recorder.snapshot()])

    def write_turns(self) -> None:
        """Write the turns since the last call; call it after each turn."""
        if self._writer is None:
            return
        try:
            self._writer.write(self._recorder.take())
        except OSError as error:
            event = "the step log ends here: it cannot be written"
            structlog.get_logger().warning(event, reason=error.strerror)
            self._stop()

    def close(self) -> None:
        """End the trace; may be called twice."""
        self.write_turns()
        self._stop()

    def _stop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._engine.stop_recording()
        try:
            writer.close()
        except OSError as error:
            structlog.get_logger().warning("the step log lacks its last lines", reason=error.strerror)
