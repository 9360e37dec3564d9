"""Runs an experiment's requests over an engine and keeps the step log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Final

import attrs

from docs.examples.watch.experiment import ScriptedRequest
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.trace import TraceHeader, TraceRecord

SEED: Final = 7


@attrs.frozen
class RecordedRun:
    """A whole step log, with the words."""

    header: TraceHeader
    records: Sequence[TraceRecord]

    def __iter__(self) -> Iterator[TraceRecord]:
        return iter(self.records)

    def followed_by(self, other: RecordedRun) -> RecordedRun:
        """This run and, with a snapshot between them, another one that an equal engine went on with."""
        end = self.records[-1].at
        moved = [attrs.evolve(each, at=end + each.at) for each in other.records]
        return RecordedRun(self.header, [*self.records, *moved])


def run_experiment(
    requests: Sequence[ScriptedRequest], settings: EngineSettings, assembly: Assembly
) -> RecordedRun:
    """Let the requests arrive, and be cancelled, each before its step, until all have ended.

    The engine is idle before and afterwards. Raises a `RequestRefusedError` where the settings leave no room.
    """
    engine, header = assembly.engine, trace_header(settings, assembly, has_words=True)
    recorder = engine.record(assembly.tokenizer)
    records: list[TraceRecord] = [recorder.snapshot()]
    coming = _make_requests(requests, assembly.tokenizer)
    cancelled = {each.name: each.cancelled for each in requests if each.cancelled is not None}
    try:
        while coming or engine.has_work:
            step = engine.counts().step + 1
            while coming and (coming[0][0] <= step or not engine.has_work):
                engine.add(coming.pop(0)[1])
            for name in [name for name, due in cancelled.items() if due <= step]:
                engine.abort(name)
                del cancelled[name]
            engine.turn()
            records.extend(recorder.take())
    finally:
        engine.stop_recording()
    return RecordedRun(header, records)


def _make_requests(scripted: Sequence[ScriptedRequest], tokenizer: Tokenizer) -> list[tuple[int, Request]]:
    """Every request with the step that it arrives at; their prompts are tokens of the story, which begins again at its end."""
    story = cycle(tokenizer.encode(PASSAGE, add_special_tokens=False))
    shared = list(islice(story, max(each.shared for each in scripted)))
    made = []
    for each in scripted:
        sampling = SamplingParams(
            n=each.n, temperature=each.temperature, max_tokens=each.generates, ignore_eos=True
        )
        prompt = (*shared[: each.shared], *islice(story, each.own))
        made.append(
            (each.step, Request(request_id=each.name, prompt_token_ids=prompt, sampling=sampling, seed=SEED))
        )
    return made


PASSAGE: Final = """\
Once upon a time a lighthouse keeper lived on a small island with her brother, a grey cat and a clock that was always
late. Every evening she climbed the stairs, lit the lamp and wrote into a book which ships had passed, how high the waves
were and what the wind had said. One evening a boat came in that she did not know. It was blue, it had no sail, and
nobody sat in it but an old fox with a wet coat. The fox asked for a bowl of soup and a place by the fire, and promised
a story for each of them. The keeper thought about it, looked at the cat, and opened the door. The first story was about
a king who counted the stars and always forgot one. The second was about a bridge that was afraid of water, and about
the girl who talked to it until it stood still. When the fire had burned down, the fox was gone, the boat was gone, and
on the table lay a key that was warm, as if somebody had held it in his hand for a very long time. The brother said that
they should throw it into the sea. The cat said nothing, as cats do, but it sat down on the key and did not move before
the morning came. Then the clock struck seven, for the first time at the right moment, and far out in the fog another
lighthouse answered, where no lighthouse had ever been.
"""
