from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from nanoserve.domain.scheduling import admission
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_host import host
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.driving import LinkClosedError
from nanoserve.ports.engine_facts import EngineState, RunnerCounts
from nanoserve.ports.engine_link import (
    Abort,
    Add,
    Command,
    ForgetPrefixes,
    Ready,
    Refused,
    Report,
    Stop,
    Turned,
)
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason
from tests.fakes.memory_runner import MemoryRunner
from tests.inside import inside
from tests.unit.adapters.engine_process.client.engines import expected, request
from tests.unit.adapters.engine_process.host.scripted_host import DENIED, build


class ScriptedLink:
    """Plays commands, one list per look, and keeps the reports; a look at an idle engine beyond the script stops it."""

    unread = 0

    def __init__(self, *script: Sequence[Command]) -> None:
        self.reports: list[Report] = []
        self.waits: list[float] = []
        self._script = list(script)

    def receive(self, timeout: float) -> Sequence[Command]:
        self.waits.append(timeout)
        if self._script:
            return self._script.pop(0)
        return [Stop()] if timeout else []

    def send(self, report: Report) -> None:
        self.reports.append(report)

    @property
    def answers(self) -> list[TokensGenerated]:
        turns = [report for report in self.reports if isinstance(report, Turned)]
        return [event for turn in turns for event in turn.events if isinstance(event, TokensGenerated)]

    @property
    def refusals(self) -> list[Refused]:
        return [report for report in self.reports if isinstance(report, Refused)]

    @property
    def states(self) -> list[EngineState]:
        return [report.state for report in self.reports if isinstance(report, Turned) and report.state]


def serve(link: ScriptedLink, **settings: Any) -> None:
    host(link, EngineSettings(paranoid=True, **settings), build)


def test_facts_come_first_and_the_warm_up_is_not_counted() -> None:
    link = ScriptedLink()
    serve(link)
    ready = link.reports[0]
    assert isinstance(ready, Ready)
    assert ready.facts.num_kv_blocks == 4096
    assert ready.facts.model == "built-in"
    assert list(ready.facts.start_phases) == ["scripted", "warm-up"]
    assert "memory" not in ready.facts.budget
    assert link.states == []


def test_what_few_requests_need_is_begun_once_the_engine_is_ready() -> None:
    link, sent = ScriptedLink(), list[list[Report]]()

    def build_with_more(settings: EngineSettings, watch: Stopwatch) -> Assembly:
        grammars: Any = SimpleNamespace(begin=lambda: sent.append(list(link.reports)))
        return attrs.evolve(build(settings, watch), grammars=grammars)

    host(link, EngineSettings(), build_with_more)
    assert [[type(each) for each in reports] for reports in sent] == [[Ready]]


def test_a_request_is_answered_without_waiting_and_the_books_come_first_and_last() -> None:
    link = ScriptedLink([], [Add(request("r", max_tokens=60))])
    serve(link)
    assert [token for event in link.answers for token in event.token_ids] == expected((1, 2, 3), 60)
    assert link.waits[:2] == [0.5, 0.5]
    assert set(link.waits[2:-1]) == {0.0}
    assert link.waits[-1] == 0.5
    turns = [report for report in link.reports if isinstance(report, Turned)]
    assert turns[0].state is not None
    assert 2 <= len(link.states) <= len(turns) // 4
    last = link.states[-1]
    assert (last.accepted, last.finished["length"], last.running, last.waiting) == (1, 1, 0, 0)
    assert (last.free_blocks, last.leaked_blocks) == (4096, 0)
    assert last.last_step <= last.at


def test_an_idle_engine_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    time = iter(range(100))
    monkeypatch.setattr(
        "nanoserve.adapters.engine_process.host.loop.time.monotonic", lambda: float(next(time))
    )
    link = ScriptedLink([], [], [])
    serve(link)
    assert link.reports[1:] == [Turned((), state) for state in link.states]
    assert len(link.states) == 3


def test_a_refused_request_gets_the_reason() -> None:
    link = ScriptedLink(
        [Add(request("long", tuple(range(100)) * 6)), Add(request("bad", (9999,))), Add(request("good"))]
    )
    serve(link)
    long, bad = link.refusals
    assert (long.request_id, long.error) == ("long", "PromptTooLongError")
    assert (bad.request_id, bad.error) == ("bad", "BadValueError")
    assert bad.message.startswith("prompt: ")
    assert {event.request_id for event in link.answers} == {"good"}


def test_a_bug_in_a_check_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    check = admission.check_request

    def buggy(asked: Any, *others: Any) -> None:
        if DENIED in asked.prompt_token_ids:
            raise KeyError("secret")
        check(asked, *others)

    monkeypatch.setattr("nanoserve.domain.scheduling.admission.check_request", buggy)
    link = ScriptedLink([Add(request("bug", (DENIED,))), Add(request("good"))])
    serve(link)
    [refused] = link.refusals
    assert (refused.request_id, refused.error) == ("bug", "KeyError")
    assert "secret" not in refused.message
    assert {event.request_id for event in link.answers} == {"good"}


def test_abort_ends_a_request_and_unknown_ones_are_ignored() -> None:
    link = ScriptedLink([Add(request("r", max_tokens=200))], [], [], [Abort("r"), Abort("nobody")])
    serve(link)
    assert link.answers[-1].finish_reason is FinishReason.ABORT
    assert len(link.answers) < 10


def test_prefixes_are_forgotten() -> None:
    prompt = tuple(range(40))
    for between, hits in (([], 36), ([ForgetPrefixes()], 0)):
        link = ScriptedLink(
            [Add(request("a", prompt, max_tokens=1))], [], between, [Add(request("b", prompt, max_tokens=1))]
        )
        serve(link)
        assert link.states[-1].prefix_hits == hits


def test_an_answer_that_cannot_be_sent_ends_its_request_alone() -> None:
    class Narrow(ScriptedLink):
        def send(self, report: Report) -> None:
            if isinstance(report, Turned) and any(event.request_id == "big" for event in report.events):
                raise BadValueError("request", "takes too many bytes")
            super().send(report)

    link = Narrow([Add(request("big")), Add(request("small"))])
    serve(link)
    assert [token for event in link.answers for token in event.token_ids] == expected((1, 2, 3))
    assert {(each.request_id, each.error) for each in link.refusals} == {("big", "RequestTooLargeError")}
    assert link.states[-1].finished["abort"] == 1


def test_a_lost_parent_ends_it() -> None:
    class Lost(ScriptedLink):
        def receive(self, timeout: float) -> Sequence[Command]:
            raise LinkClosedError

    with pytest.raises(LinkClosedError):
        serve(Lost())


def test_what_the_runner_counts_is_added_to_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = inside(build(EngineSettings(), Stopwatch()).engine)
    monkeypatch.setattr(
        MemoryRunner, "counts", lambda _: RunnerCounts(1.5, 2, {"graph": 5}, {"0": 3, "1": 9}, 10)
    )
    state = engine.state()
    assert (state.device_wait_seconds, state.late_compiles, state.graph_steps) == (1.5, 2, {"graph": 5})
    assert (state.expert_tokens, state.expert_balance) == ({"0": 3, "1": 9}, 0.6)
