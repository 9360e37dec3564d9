"""A run of the scripted engine that was recorded: hits, preemptions, an abort, several answers, in a few dozen steps."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.trace import Snapshot, TraceHeader, TraceRecord
from tests.unit.entrypoints.scripted_world import LetterTokenizer, scripted_assembly

FORMAT = JsonTraceFormat()
SECRET = "hush, the fox knows."
"""What was asked; of this no trace may tell unless it is asked to."""


@attrs.frozen
class RecordedRun:
    """A trace in memory."""

    header: TraceHeader
    records: list[TraceRecord]

    def __iter__(self) -> Iterator[TraceRecord]:
        return iter(self.records)

    @property
    def lines(self) -> list[bytes]:
        """As in a file, each with its line break."""
        written = [FORMAT.encode_header(self.header), *map(FORMAT.encode, self.records)]
        return [line + b"\n" for line in written]


def recorded_run(
    *names: str, num_requests: int = 12, num_blocks: int = 24, max_tokens: int = 24, words: bool = False
) -> RecordedRun:
    """Requests by these names, or by numbers; the second one is aborted, every fourth has four answers."""
    assembly = scripted_assembly(num_blocks=num_blocks)
    engine, tokenizer = assembly.engine, LetterTokenizer()
    header = trace_header(EngineSettings(), assembly, has_words=words)
    recorder = engine.record(tokenizer if words else None)
    records: list[TraceRecord] = [recorder.snapshot()]
    asked = names or tuple(f"request-{number}" for number in range(num_requests))
    for number, name in enumerate(asked):
        sampling = SamplingParams(max_tokens=max_tokens + number % 5, n=4 if number % 4 == 3 else 1)
        prompt = tuple(tokenizer.encode(SECRET + "abcdefgh"[: number % 8]))
        engine.add(Request(request_id=name, prompt_token_ids=prompt, sampling=sampling, seed=number))
    while engine.has_work:
        engine.turn()
        records.extend(recorder.take())
        if len(records) == 5 and len(asked) > 1:
            engine.abort(asked[1])
    return RecordedRun(header, records)


def restarted(run: RecordedRun) -> RecordedRun:
    """The run once more behind itself, as if another engine had taken over."""
    assert isinstance(run.records[0], Snapshot)
    return RecordedRun(run.header, [*run.records, *run.records])
