"""`ports.TraceFormat` in JSON lines: each value is an array, and every line is checked, entry by entry, when it is read.

`docs/trace.md` gives the order of the entries, which is the order of the fields in `ports/trace.py`: array-shaped twins of the port's
classes, which msgspec checks a line against, are made from these.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from nanoserve.ports import trace
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import TRACE_VERSION, TraceHeader, TraceRecord

TAGS: Final[dict[type, str]] = {
    trace.Snapshot: "snapshot",
    trace.Turn: "turn",
    trace.StatusChange: "status",
    trace.Admission: "admit",
    trace.Preemption: "preempt",
    trace.Repetition: "repeat",
    trace.PlannedStep: "step",
    trace.TablesGiven: "give",
    trace.TableGrown: "grow",
    trace.BlockDropped: "drop",
    trace.BlocksShared: "share",
    trace.BlocksNamed: "name",
    trace.StateHeld: "state",
    trace.StateCopied: "copy",
    trace.TablesReturned: "return",
    trace.PrefixesForgotten: "forget",
    trace.BlocksFetched: "fetch",
    trace.BlocksLanded: "land",
}
"""The first entry of those values that may stand beside others."""
UNTAGGED: Final = (trace.Arrival, trace.Ending, trace.TracedChunk, trace.Words, trace.TracedSequence)


class TwinnedClass:
    """One class of the port, its array-shaped twin, and the way from one to the other."""

    def __init__(self, port: type, twins: Mapping[type, type]) -> None:
        hints = get_type_hints(port)
        names = [field.name for field in attrs.fields(port)]
        fields = attrs.fields(port)
        self._may_lack_last = bool(fields) and fields[-1].metadata == trace.LEFT_OUT_IF_USUAL
        self._usual = fields[-1].default if fields else None
        types_of: list[Any] = [(name, _twin_type(hints[name], twins)) for name in names]
        if self._may_lack_last:
            types_of[-1] = (*types_of[-1], self._usual)
        self.port = port
        self.tag = TAGS.get(port)
        self.twin = msgspec.defstruct(
            port.__name__, types_of, array_like=True, forbid_unknown_fields=True, tag=self.tag
        )
        self._names = names
        self._nested = [index for index, name in enumerate(names) if _mentions(hints[name], set(twins))]
        self._read = attrgetter(*names) if len(names) > 1 else self._read_few

    def _read_few(self, value: Any) -> tuple[Any, ...]:
        return tuple(getattr(value, name) for name in self._names)

    def entries(self, value: Any) -> list[Any]:
        """The array of a port's value."""
        entries = list(self._read(value))
        if self._may_lack_last and entries[-1] == self._usual:
            del entries[-1]
        for index in self._nested:
            entries[index] = [KINDS[type(each)].entries(each) for each in entries[index]]
        return entries if self.tag is None else [self.tag, *entries]

    def value(self, twin: Any) -> Any:
        """The port's value of a checked array."""
        entries = list(self._read(twin))
        for index in self._nested:
            entries[index] = tuple(TWINS[type(each)].value(each) for each in entries[index])
        return self.port(**dict(zip(self._names, entries, strict=True)))


def _twin_type(hint: Any, twins: Mapping[type, type]) -> Any:
    """A type with every class of the port replaced by its twin."""
    if hint in twins:
        return twins[hint]
    arguments = tuple(_twin_type(each, twins) for each in get_args(hint))
    if isinstance(hint, types.UnionType):
        return Union[arguments]  # noqa: UP007 - made of values
    return get_origin(hint)[arguments] if arguments else hint


def _mentions(hint: Any, ports: set[type]) -> bool:
    return hint in ports or any(_mentions(each, ports) for each in get_args(hint))


def _kinds() -> dict[type, TwinnedClass]:
    """Innermost values first, since a twin is made of twins."""
    kinds: dict[type, TwinnedClass] = {}
    outermost = (trace.Snapshot, trace.Turn, trace.StatusChange)
    inner = [port for port in (*UNTAGGED, *TAGS) if port not in {*outermost, trace.PlannedStep}]
    for port in (*inner, trace.PlannedStep, *outermost):
        kinds[port] = TwinnedClass(port, {each: kind.twin for each, kind in kinds.items()})
    return kinds


KINDS: Final = _kinds()
TWINS: Final = {kind.twin: kind for kind in KINDS.values()}
_RECORDS: Final = tuple(KINDS[port].twin for port in (trace.Snapshot, trace.Turn, trace.StatusChange))
RECORD: Final[Any] = Union[_RECORDS]  # noqa: UP007 - made of values


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
        return self._encode(KINDS[type(record)].entries(record))

    def decode(self, line: bytes, /) -> TraceRecord:
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
