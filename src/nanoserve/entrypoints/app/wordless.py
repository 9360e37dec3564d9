"""The step log for those who may not read what others asked and were answered."""

from __future__ import annotations

import functools

import attrs

from nanoserve.entrypoints.app.live_feed import Part
from nanoserve.ports.driven import TraceFormat
from nanoserve.ports.trace import Turn


class Wordless:
    """Takes the words out of parts of a step log."""

    def __init__(self, trace_format: TraceFormat) -> None:
        self._format = trace_format
        self.without_words = functools.lru_cache(maxsize=4)(self._strip)
        """A part as it would be without words; all who ask for a new one get the same."""

    def _strip(self, part: Part) -> Part:
        header = part.header
        if header is not None:
            header = self._format.encode_header(
                attrs.evolve(self._format.decode_header(header), has_words=False)
            )
        return Part(b"\n".join(map(self._strip_line, part.lines.split(b"\n"))), header)

    def _strip_line(self, line: bytes) -> bytes:
        record = self._format.decode(line)
        if not isinstance(record, Turn) or not record.words:
            return line
        return self._format.encode(attrs.evolve(record, words=()))
