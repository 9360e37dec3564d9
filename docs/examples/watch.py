"""Six scripted experiments, each of which makes one idea of the engine visible; docs/watch-a-request.md explains them.

    python -m docs.examples.watch [EXPERIMENT] [--png FILE] [--report FILE] [--trace FILE] [--SETTING VALUE ...]

Without EXPERIMENT they are listed. A setting is any engine option of `nanoserve serve`; it overrules the experiment's.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.app.traces.writer import TraceWriter, check_trace_path
from nanoserve.entrypoints.compose.bootstrap import assemble, trace_format
from nanoserve.entrypoints.compose.config.configuration import Configuration, read_configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.entrypoints.page.inspect.picture import draw, find_browser
from nanoserve.entrypoints.page.inspect.report import make_report
from nanoserve.ports import trace
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

SAME: Final[Mapping[str, Any]] = {"device": "cpu", "dtype": "float32", "depth": 1, "threads": 1}
"""So that every run of an experiment is the same: one step at a time, in numbers that do not depend on the batch."""
_PAGE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
STORY: Final[str] = _PAGE.pop("story")
EXPERIMENTS: Final[Mapping[str, Mapping[str, Any]]] = _PAGE
HEADINGS: Final = "sequence, arrives, runs in steps, prompt, cached, computed, blocks back, ends with"


@attrs.frozen
class Run:
    """A whole step log, with the words; every step is a number.

    Attributes:
        sequences: what became of each, by key.
        steps: by number, the tokens that each computed, the keys of the sequences that it decoded, and when it was over.
        holders: after each turn, how many blocks of the first group are held by how many tables.
    """

    header: trace.TraceHeader
    records: Sequence[trace.TraceRecord]
    sequences: dict[int, Seen] = attrs.field(factory=dict)
    steps: dict[int, tuple[int, tuple[int, ...], float]] = attrs.field(factory=dict)
    holders: list[Counter[int]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        step, held = 0, dict[int, int]()
        for record, replay in walk(self.records):
            if isinstance(record, trace.Turn):
                self._take(record, step, held)
                held = {key: len(each.tables[0]) for key, each in replay.sequences.items() if each.tables}
                self.holders.append(Counter(count for count in replay.references[0].values() if count))
            step = replay.step

    def lines(self) -> Iterator[str]:
        """A table of the sequences, and what is to be said of the run as a whole."""
        rows = [tuple(HEADINGS.split(", ")), *(tuple(each.cells()) for each in self.sequences.values())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        most = max(tokens for tokens, *_ in self.steps.values())
        answers = len({each.answer for each in self.sequences.values()})
        yield f"- {counted(len(self.steps), 'step')}, of at most {counted(most, 'token')}; {counted(answers, 'different answer')}"
        fullest = max(self.holders, key=Counter.total)
        listed = sum(count * blocks for count, blocks in fullest.items())
        sharers = max(max(each, default=0) for each in self.holders)
        shared = max(each[sharers] for each in self.holders)
        said = f"; {shared} are held by {sharers} sequences at once" if sharers > 1 else ""
        yield f"- at most {fullest.total()} of {self.header.num_blocks} blocks are in use, and listed {listed} times{said}"
        tokens, seconds = (max(each) for each in zip(*self.waits(), strict=True))
        yield f"- the longest wait for a next token: {tokens} computed tokens, {1000 * seconds:.0f} ms"

    def waits(self) -> Iterator[tuple[int, float]]:
        """Between two tokens of a sequence: tokens computed meanwhile, and seconds, with one step in flight at a time."""
        for key in self.sequences:
            decoded = [number for number, (_, decoding, _) in self.steps.items() if key in decoding]
            for before, step in pairwise(decoded):
                computed = sum(self.steps[each][0] for each in range(before + 1, step + 1))
                yield computed, self.steps[step][2] - self.steps[before][2]

    def _take(self, turn: trace.Turn, step: int, held: Mapping[int, int]) -> None:
        """Of a turn, in which the step after `step` was planned."""
        seen = self.sequences
        for arrival in turn.arrived:
            name = arrival.request_id + (f"/{arrival.index}" if arrival.index else "")
            seen[arrival.key] = Seen(name, arrival.num_prompt_tokens, step + 1)
        for change in turn.kv:
            if isinstance(change, trace.TablesReturned) and change.key in held:
                seen[change.key].returns.append((step + 1, held[change.key]))
        planned = step
        for event in turn.happened:
            match event:
                case trace.Admission(key, _, num_cached, _):
                    seen[key].admissions.append((planned + 1, num_cached))
                case trace.Preemption(key):
                    seen[key].stops.append(planned)
                case trace.PlannedStep(planned, chunks, decoding):
                    for chunk in chunks:
                        seen[chunk.key].chunks.append((planned, chunk.length))
                    decoding = self.steps[planned - 1][1] if decoding is None else decoding
                    computed = sum(chunk.length for chunk in chunks) + len(decoding)
                    self.steps[planned] = computed, decoding, turn.at
        for end in turn.ended:
            seen[end.key].stops.append(planned - (end.reason == "abort"))
            seen[end.key].ending = f"{end.reason}, {counted(end.num_generated, 'token')}"
        for words in turn.words:
            seen[words.key].token_ids.extend(words.token_ids)


@attrs.define
class Seen:
    """What became of a sequence: steps of its admissions with tokens found in the cache, of its chunks with their lengths, and so on."""

    name: str
    num_prompt: int
    arrived: int
    admissions: list[tuple[int, int]] = attrs.field(factory=list)
    stops: list[int] = attrs.field(factory=list)
    chunks: list[tuple[int, int]] = attrs.field(factory=list)
    returns: list[tuple[int, int]] = attrs.field(factory=list)
    ending: str = ""
    token_ids: list[int] = attrs.field(factory=list)

    @property
    def answer(self) -> tuple[int, ...]:
        """The tokens that it generated."""
        return tuple(self.token_ids[self.num_prompt :])

    def cells(self) -> Iterator[str]:
        """One for each of `HEADINGS`."""
        lengths = [length for _, length in self.chunks]
        many = f"{sum(lengths)} in {len(lengths)} chunks of {min(lengths)} to {max(lengths)}"
        yield from (self.name, str(self.arrived))
        spans = zip(self.admissions, self.stops, strict=True)
        yield ", ".join(f"{first}-{last}" for (first, _), last in spans)
        yield from (str(self.num_prompt), ", ".join(str(cached) for _, cached in self.admissions))
        yield many if len(lengths) > 6 else " + ".join(map(str, lengths))
        yield ", ".join(f"{blocks} at step {step}" for step, blocks in self.returns)
        yield self.ending


def configure(given: Mapping[str, Any], name: str) -> list[Configuration]:
    """Of each run of an experiment: what the user set overrules its settings; there may be a run beside it."""
    experiment = EXPERIMENTS[name]
    asked = {key: each for key, each in given.items() if each is not None}
    flags = {**SAME, **experiment["settings"], **asked}
    every = [flags]
    if "beside" in experiment:
        every.append({**flags, **{key: each or None for key, each in experiment["beside"].items()}})
    runs = [read_configuration(each, {}) for each in every]
    return runs[::-1] if "one_picture" in experiment else runs


def run(scripted: Sequence[Mapping[str, Any]], settings: EngineSettings) -> Run:
    """Let the requests arrive, and be cancelled, each before its step, until all have ended."""
    assembly = assemble(settings)
    engine, coming = assembly.engine, list(scripted)
    story = cycle(assembly.tokenizer.encode(STORY.lstrip(), add_special_tokens=False))
    common = list(islice(story, max(each.get("shared", 0) for each in scripted)))
    recorder = engine.record(assembly.tokenizer)
    records: list[trace.TraceRecord] = [recorder.snapshot()]
    while coming or engine.has_work:
        step = engine.counts().step + 1
        while coming and (coming[0].get("step", 1) <= step or not engine.has_work):
            engine.add(_request(coming.pop(0), common, story))
        for each in scripted:
            if each.get("cancelled") == step:
                engine.abort(each["name"])
        engine.turn()
        records.extend(recorder.take())
    return Run(trace_header(settings, assembly, has_words=True), records)


def _request(new: Mapping[str, Any], common: Sequence[int], story: Iterator[int]) -> Request:
    draw = {"n": new.get("n", 1), "temperature": new.get("temperature", 0.0)}
    sampling = SamplingParams(**draw, max_tokens=new["generates"], ignore_eos=True)
    prompt = (*common[: new.get("shared", 0)], *islice(story, new["own"]))
    return Request(request_id=new["name"], prompt_token_ids=prompt, sampling=sampling, seed=7)


def show(given: Mapping[str, Any], name: str, files: Mapping[str, str | None]) -> None:
    """Run an experiment, print what happened and write the files, by `png`, `report` and `trace`; raises `NanoserveError`."""
    experiment, configurations = EXPERIMENTS[name], configure(given, name)
    if files["png"] is not None:
        find_browser()
    for option, path in files.items():
        if path is not None:
            check_trace_path(path, name=option)
    runs = [run(experiment["requests"], each.engine) for each in configurations]
    print(f"{name}: {experiment['title']}")
    for configuration, each in zip(configurations, runs, strict=True):
        about = [f"{key} = {configuration.values[key].value}:" for key in experiment.get("beside", ())]
        print(*about, *each.lines(), sep="\n")
    first, *others = runs
    for other in others:
        pairs = list(zip(first.sequences.values(), other.sequences.values(), strict=True))
        same = sum(one.answer == its.answer for one, its in pairs)
        print(f"{same} of {len(pairs)} answers are the same in both runs, token for token")
    records: Iterable[trace.TraceRecord] = first.records
    if "one_picture" in experiment:  # with a snapshot between them, as if one engine had gone on
        end = first.records[-1].at
        records = [*first.records, *(attrs.evolve(each, at=end + each.at) for each in others[0].records)]
    if files["report"] or files["png"]:
        asked = configurations[-1 if "one_picture" in experiment else 0]
        values = {key: each.value for key, each in asked.values.items()}
        caption = f"{name}: {experiment['caption'].format(**values)}"
        document = make_report(first.header, records, trace_format(), caption=caption)
        if files["report"]:
            Path(files["report"]).write_bytes(document)
        if files["png"]:
            draw(document, files["png"])
    if files["trace"]:
        with contextlib.closing(TraceWriter(files["trace"], first.header, trace_format())) as writer:
            writer.write(records)


def main() -> None:
    """Run the experiment asked for, or list them; an error is one line."""
    parser = argparse.ArgumentParser(prog="python -m docs.examples.watch", allow_abbrev=False)
    parser.add_argument("experiment", nargs="?", choices=EXPERIMENTS)
    files, settings = ("png", "report", "trace"), attrs.fields(EngineSettings)
    for name in files:
        parser.add_argument(f"--{name}", metavar="FILE")
    for each in settings:
        action = argparse.BooleanOptionalAction if isinstance(each.default, bool) else "store"
        parser.add_argument(f"--{each.name.replace('_', '-')}", action=action, help=argparse.SUPPRESS)
    asked = vars(parser.parse_args())
    if asked["experiment"] is None:
        print(*(f"{name:<16} {each['title']}" for name, each in EXPERIMENTS.items()), sep="\n")
        return
    try:
        given = {each.name: asked[each.name] for each in settings}
        show(given, asked["experiment"], {name: asked[name] for name in files})
    except NanoserveError as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
