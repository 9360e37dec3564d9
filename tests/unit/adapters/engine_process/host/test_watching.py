"""The step log on its way out of the engine's process: complete, in batches, and never in the engine's way."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from nanoserve.adapters.engine_process.host.watching import MOST_UNREAD, Watching
from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_host import host
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.driving import LinkClosedError
from nanoserve.ports.engine_link import Add, Command, ForgetPrefixes, Logged, Report, Stop, Unwatch, Watch
from nanoserve.ports.trace import TraceRecord
from tests.inside import inside
from tests.unit.adapters.engine_process.client.engines import expected, request
from tests.unit.adapters.engine_process.client.log_reader import FORMAT, LogReader, without_time
from tests.unit.adapters.engine_process.host import scripted_host
from tests.unit.adapters.engine_process.host.test_loop import ScriptedLink
from tests.unit.entrypoints.server.watch.watched_engine import HEADER

WATCH = Watch(model="a name")


@attrs.define
class Served:
    """A host's whole life, and the engine it had."""

    link: ScriptedLink
    assembly: Assembly

    @property
    def parts(self) -> list[Logged]:
        return [report for report in self.link.reports if isinstance(report, Logged)]

    @property
    def log(self) -> LogReader:
        """The log, read to its end."""
        return read(self.parts)

    @property
    def books(self) -> Any:
        return without_time(read_snapshot(inside(self.assembly.engine).scheduler, at=0.0))


def read(parts: Sequence[Logged]) -> LogReader:
    reader = LogReader()
    for part in parts:
        reader.read(part.lines)
    return reader


def serve(link: ScriptedLink, **settings: Any) -> Served:
    built: list[Assembly] = []

    def build(asked: EngineSettings, watch: Stopwatch) -> Assembly:
        built.append(scripted_host.build(asked, watch))
        return built[0]

    host(link, EngineSettings(paranoid=True, **settings), build)
    return Served(link, built[0])


def add(number: int, max_tokens: int = 60) -> Add:
    return Add(request(f"r{number}", (number, *range(9)), max_tokens=max_tokens))


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is a batch of its own."""
    monkeypatch.setattr("nanoserve.adapters.engine_process.host.watching.BATCH_PERIOD", 0.0)


def test_the_log_of_a_life_replays_to_the_engines_own_books() -> None:
    link = ScriptedLink([add(1)], [add(2)], [WATCH], [], [add(3), add(4)], [add(5)])
    served = serve(link, num_kv_blocks=60)
    reader = served.log
    assert reader.state == served.books
    assert [len(reader.snapshots), len(reader.snapshots[0].sequences)] == [1, 2]
    assert reader.state.finished == {"length": 5}


def test_every_snapshot_is_what_the_turns_before_lead_to() -> None:
    link = ScriptedLink([WATCH, add(1)], [], [add(2)], [WATCH], [], [ForgetPrefixes()], [], [WATCH], [add(3)])
    served = serve(link)
    reader = LogReader()
    for part in served.parts:
        before = None if reader.replay is None else reader.state
        reader.read(part.lines)
        assert before is None or part.header is None or reader.state == before
    assert len(reader.snapshots) == 4
    assert [part.follows for part in served.parts if part.header is not None] == [False, True, True, True]
    assert all(part.follows for part in served.parts if part.header is None)


def test_parts_are_batches_and_the_last_one_is_not_left_behind() -> None:
    served = serve(ScriptedLink([WATCH], [add(1, max_tokens=200)]))
    batches = served.parts[1:]
    assert 2 <= len(batches) < 200
    assert json.loads(batches[-1].lines.split(b"\n")[-1])[4] == [[0, "length", 200]]


def test_an_idle_engine_sends_what_is_left_before_it_rests_long() -> None:
    """No command comes after the request, so that only the loop's own waking can send its last turns."""
    link = ScriptedLink([WATCH], [add(1, max_tokens=50)], *[[]] * 60)
    served = serve(link)
    waits = link.waits[link.waits.index(0.0) :]
    assert max(waits) <= 0.1
    assert len(served.parts) > 1


def test_nothing_is_recorded_without_a_viewer() -> None:
    recorded: list[bool] = []

    class Looking(ScriptedLink):
        def receive(self, timeout: float) -> Sequence[Command]:
            engine = built[0].engine
            recorded.append(inside(engine).scheduler.cache.journal is not None)
            return super().receive(timeout)

    built: list[Assembly] = []

    def build(asked: EngineSettings, watch: Stopwatch) -> Assembly:
        built.append(scripted_host.build(asked, watch))
        return built[0]

    link = Looking([add(1)], [], [WATCH], [], [Unwatch()], [])
    host(link, EngineSettings(), build)
    assert recorded[:6] == [False, False, False, True, True, False]
    assert not any(recorded[6:])
    last = max(n for n, report in enumerate(link.reports) if isinstance(report, Logged))
    assert last < len(link.reports) - 10, "parts come after the watching has ended"


def test_the_header_is_the_engines_with_the_watchers_name() -> None:
    began = time.monotonic() - 60
    served = serve(ScriptedLink([Watch(model="a name", began=began)]), num_kv_blocks=99, max_num_seqs=7)
    assert served.parts[0].header is not None
    header = FORMAT.decode_header(served.parts[0].header)
    assert (header.model, header.num_blocks, header.block_size) == ("a name", 99, 4)
    assert (header.max_num_seqs, header.windows, header.has_words) == (7, (None,), False)
    age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(header.started)
    assert 60 <= age.total_seconds() < 120
    assert json.loads(served.parts[0].lines)[1] >= 60


def test_words_are_sent_only_where_they_are_asked_for() -> None:
    secret = (271, 314, 161)
    answer = expected(secret, 4)
    for with_words in (False, True):
        asked = Watch(model="a name", with_words=with_words)
        link = ScriptedLink([asked], [Add(request("r", secret, max_tokens=4))])
        served = serve(link)
        reader = served.log
        told = [token for turn in reader.turns for words in turn.words for token in words.token_ids]
        assert told == ([*secret, *answer] if with_words else [])
        assert served.parts[0].header is not None
        assert FORMAT.decode_header(served.parts[0].header).has_words is with_words


def test_a_snapshot_repeats_the_words_for_a_late_viewer(instant: None) -> None:
    asked = Watch(model="a name", with_words=True)
    link = ScriptedLink(
        [asked],
        [Add(request("a", (271,), max_tokens=1))],
        [],
        [asked],
        [Add(request("b", (271,), max_tokens=1))],
    )
    served = serve(link)
    late = served.parts[max(n for n, part in enumerate(served.parts) if part.header) :]
    assert any(b'"271":"271 "' in part.lines for part in late)


def test_the_turns_before_a_bug_are_sent() -> None:
    link = ScriptedLink([WATCH, add(1)], [], [], [Add(request("bug"))])
    with pytest.raises(AssertionError, match="the books are wrong"):
        serve(link)
    reader = read([each for each in link.reports if isinstance(each, Logged)])
    assert [each.request_id for each in reader.state.sequences] == ["r1", "bug"]


def test_what_was_recorded_when_the_stop_comes_is_sent() -> None:
    link = ScriptedLink([WATCH], [add(1)], *[[]] * 10, [Stop()])
    served = serve(link)
    reader = served.log
    assert reader.state.step == inside(served.assembly.engine).scheduler.table.step


def test_a_reader_that_is_behind_gets_a_snapshot_instead_of_the_turns(instant: None) -> None:
    class Slow(ScriptedLink):
        @property
        def unread(self) -> int:  # type: ignore[override]
            return MOST_UNREAD + 1 if 10 < len(self.waits) < 30 else 0

    served = serve(Slow([WATCH], [add(1)]))
    kinds = [(part.header is not None, part.follows) for part in served.parts]
    assert kinds.count((True, False)) == 2
    again = len(kinds) - 1 - kinds[::-1].index((True, False))
    reader = read(served.parts[again:])
    assert reader.state == served.books
    assert len(served.parts) < 60


class BrokenFormat:
    """Cannot write turns."""

    def encode_header(self, header: object) -> bytes:
        return b"{}"

    def decode_header(self, line: bytes) -> Any:
        raise NotImplementedError

    def encode(self, record: TraceRecord) -> bytes:
        if type(record).__name__ == "Turn":
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "scripted")
        return b"[]"

    def decode(self, line: bytes) -> Any:
        raise NotImplementedError


def test_a_log_that_cannot_be_written_ends_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nanoserve.entrypoints.compose.engine_host.trace_format", BrokenFormat)
    served = serve(ScriptedLink([WATCH], [add(1, max_tokens=20)]))
    assert [token for event in served.link.answers for token in event.token_ids] == expected(
        (1, *range(9)), 20
    )
    assert inside(served.assembly.engine).scheduler.cache.journal is None
    assert len(served.parts) == 1
    assert "the step log cannot be written" in "".join(capsys.readouterr())


def test_a_lost_parent_is_not_taken_for_a_broken_log() -> None:
    class Lost(ScriptedLink):
        def send(self, report: Report) -> None:
            if isinstance(report, Logged):
                raise LinkClosedError
            super().send(report)

    with pytest.raises(LinkClosedError):
        serve(Lost([WATCH]))


def test_another_watch_begins_another_log() -> None:
    parts: list[Logged] = []
    assembly = scripted_host.build(EngineSettings(), Stopwatch())
    link: Any = ScriptedLink()
    link.send = parts.append
    watching = Watching(assembly.engine, link, assembly.tokenizer, lambda: HEADER, FORMAT)
    for asked in (WATCH, WATCH, attrs.evolve(WATCH, with_words=True)):
        watching.start(asked)
    assert [part.follows for part in parts] == [False, True, False]
    watching.stop()
    watching.show_everything()
    watching.finish()
    assert len(parts) == 3
