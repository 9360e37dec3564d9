"""A step log's lines: what is written is read back, and what no writer wrote is refused in one line."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest

from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.ports import trace
from nanoserve.ports.driven import TraceError

FORMAT = JsonTraceFormat()
HEADER = trace.TraceHeader(
    release="0.1.0",
    started="2026-01-01T00:00:00+00:00",
    model="built-in",
    device="cpu",
    dtype="float32",
    block_size=16,
    num_blocks=64,
    windows=(None, 128),
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=256,
)
SEQUENCE = trace.TracedSequence(
    key=7,
    request_id="</script>\u2028\n",
    index=1,
    num_prompt_tokens=3,
    max_total_tokens=9,
    tables=((1, 0), (2, 3)),
)
RECURRENT = attrs.evolve(SEQUENCE, key=8, tables=((1, 0), ()), states=((1, 3, 0),))
SNAPSHOT = trace.Snapshot(
    at=0.5, step=3, sequences=(SEQUENCE, RECURRENT), findable=((1, 2), ()), finished={"stop": 2}
)
TURN = trace.Turn(
    at=1.25,
    arrived=(trace.Arrival(7, "a", 0, 3, 9),),
    happened=(
        trace.Admission(7, 0, 16, True),
        trace.PlannedStep(4, (trace.TracedChunk(7, 16, 5, True),), (1, 2)),
        trace.Preemption(7),
        trace.Repetition(7),
        trace.PlannedStep(5, (), None),
    ),
    ended=(trace.Ending(1, "length", 4),),
    committed=4,
    num_generated=3,
    kv=(
        trace.TablesGiven(7, 1, ((1, 2), (3,))),
        trace.TableGrown(7, 0, (4,)),
        trace.BlockDropped(7, 1, 0),
        trace.BlocksShared(7, 2, ((0, 1, 2),)),
        trace.StateHeld(7, 2, 3, 0),
        trace.StateCopied(7, 2, 3, 4),
        trace.TablesReturned(7),
        trace.PrefixesForgotten(),
        trace.BlocksFetched((5, 6)),
        trace.BlocksLanded((6,)),
    ),
    words=(trace.Words(7, (2, 3), {2: "<", 3: " é"}),),
)


@pytest.mark.parametrize(
    "record", [SNAPSHOT, TURN, trace.Turn(at=0.0), trace.StatusChange(2.0, "restarting")]
)
def test_a_record_survives_its_line(record: trace.TraceRecord) -> None:
    line = FORMAT.encode(record)
    assert b"\n" not in line
    assert FORMAT.decode(line) == record


def test_a_header_survives_its_line() -> None:
    full = attrs.evolve(HEADER, kinds=("full", "recurrent"), pools=(64, 9))
    for header in (HEADER, full):
        assert FORMAT.decode_header(FORMAT.encode_header(header)) == header
    assert full.pool(1) == 9


def test_a_header_from_before_the_kinds_is_read() -> None:
    fields = msgspec.json.decode(FORMAT.encode_header(HEADER))
    del fields["kinds"], fields["pools"]
    header = FORMAT.decode_header(msgspec.json.encode(fields))
    assert header == HEADER
    assert [header.pool(group) for group in (0, 1)] == [64, 64]


def test_a_sequence_without_states_is_written_as_ever() -> None:
    assert FORMAT.encode(SNAPSHOT).count(b"[[1,3,0]]") == 1
    assert b',"waiting",null,0,0,0,[[1,0],[2,3]]]' in FORMAT.encode(SNAPSHOT)


def test_a_steady_step_takes_few_bytes() -> None:
    steady = trace.Turn(
        at=12.345678, happened=(trace.PlannedStep(1000, (), None),), committed=999, num_generated=256
    )
    assert len(FORMAT.encode(steady)) < 80


def test_another_version_is_named() -> None:
    line = FORMAT.encode_header(attrs.evolve(HEADER, version=2))
    with pytest.raises(TraceError, match=r"version 2; this release reads 1"):
        FORMAT.decode_header(line)


@pytest.mark.parametrize(
    "values",
    [
        {"windows": ()},
        {"num_blocks": -1},
        {"pools": (64,)},
        {"pools": (64, 65)},
        {"kinds": ("full", "full", "full")},
        {"num_blocks": 2**40},
        {"block_size": 0},
        {"max_num_batched_tokens": -5},
    ],
)
def test_an_engine_that_cannot_be_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="header"):
        FORMAT.decode_header(FORMAT.encode_header(attrs.evolve(HEADER, **values)))


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"version": "1"}', b'{"version": 1}', b"\xff", b"null", b"[" * 100_000]
)
def test_what_is_no_header_is_refused(line: bytes) -> None:
    with pytest.raises(TraceError, match="header"):
        FORMAT.decode_header(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'["turn"]',
        b'["dance", 1]',
        b'["status", 1.0, 2]',
        b"\xff",
        FORMAT.encode(TURN)[:-9],
        FORMAT.encode(TURN).replace(b'"grow"', b'"shrink"'),
        FORMAT.encode(TURN).replace(b'["admit",7', b'["admit","7"'),
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(TraceError, match="record"):
        FORMAT.decode(line)
