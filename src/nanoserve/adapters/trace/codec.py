"""`ports.TraceFormat` in JSON lines."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nanoserve.adapters.trace.schema import KINDS, RECORD, TWINS
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import TRACE_VERSION, TraceHeader, TraceRecord

MOST_BLOCKS: Final = 2**24
"""Beyond any machine's memory: who draws a cell per block need not fear a header."""


class _Version(msgspec.Struct):
    version: int


class JsonTraceFormat:
    """Every line is checked against `schema` when it is read, entry by entry."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._records: msgspec.json.Decoder[Any] = msgspec.json.Decoder(RECORD)
        self._version = msgspec.json.Decoder(_Version)
        self._header = msgspec.json.Decoder(TraceHeader)

    def encode_header(self, header: TraceHeader, /) -> bytes:
        """As in the port."""
        return self._encode(header)

    def decode_header(self, line: bytes, /) -> TraceHeader:
        """As in the port; an unknown version is refused before anything else."""
        try:
            version = self._version.decode(line).version
            if version != TRACE_VERSION:
                raise TraceError(f"it is a step log of version {version}; this release reads {TRACE_VERSION}")
            return _checked(self._header.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise TraceError(f"this is not the header of a step log: {error}") from error

    def encode(self, record: TraceRecord, /) -> bytes:
        """As in the port."""
        return self._encode(KINDS[type(record)].entries(record))

    def decode(self, line: bytes, /) -> TraceRecord:
        """As in the port."""
        try:
            twin = self._records.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise TraceError(f"this is not a record of a step log: {error}") from error
        record: TraceRecord = TWINS[type(twin)].value(twin)
        return record


def _checked(header: TraceHeader) -> TraceHeader:
    limits = (header.block_size, header.max_num_seqs, header.max_num_batched_tokens, header.max_model_len)
    if min(limits) < 1:
        raise TraceError("this is not the header of a step log: a limit of the engine is below 1")
    if not 0 <= header.num_blocks <= MOST_BLOCKS:
        raise TraceError(f"this is not the header of a step log: {header.num_blocks} is no number of blocks")
    if not header.windows:
        raise TraceError("this is not the header of a step log: there is no cache group")
    for of_groups in (header.kinds, header.pools):
        if of_groups and len(of_groups) != len(header.windows):
            raise TraceError("this is not the header of a step log: its cache groups are of different number")
    if any(not 0 <= count <= header.num_blocks for count in header.pools):
        raise TraceError("this is not the header of a step log: a pool is larger than the largest")
    return header
