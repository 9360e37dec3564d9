"""The engine is killed, frozen and made to raise while fifty streams run. The server stays, says so, and recovers."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.chaos.faulty_engine import FATAL, GUILTY, UNKNOWN, marked
from tests.chaos.losing import Loss, lose, undisturbed
from tests.chaos.subject import Subject
from tests.chaos.watching import scrape
from tests.chaos.wire import Outcome, complete


@pytest.fixture(scope="module")
def expected(subject: Subject) -> list[str]:
    outcomes = asyncio.run(undisturbed(subject.port))
    assert all(each.is_whole for each in outcomes)
    assert len({each.text for each in outcomes}) > 50
    return [each.text for each in outcomes]


def _strike(subject: Subject, how: str) -> Loss:
    async def kill() -> None:
        subject.kill_engine(signal.SIGKILL)

    async def freeze() -> None:
        subject.kill_engine(signal.SIGSTOP)

    async def run_into_a_bug() -> None:
        outcome = await complete(subject.port, {"prompt": marked(FATAL), "max_tokens": 2, "ignore_eos": True})
        assert outcome.is_whole, outcome

    return asyncio.run(lose(subject.port, {"killed": kill, "frozen": freeze, "buggy": run_into_a_bug}[how]))


@pytest.mark.parametrize("how", ["killed", "frozen", "buggy"])
def test_a_lost_engine_is_replaced(subject: Subject, expected: list[str], how: str) -> None:
    before = asyncio.run(scrape(subject.port))
    loss = _strike(subject, how)
    assert [each.text for each in loss.outcomes] == expected
    assert all(each.is_whole for each in loss.outcomes), "streams that had begun go on, all others come whole"
    _check_books(loss, before.restarts + 1)
    assert loss.watch.statuses["/livez"] == [200]
    assert loss.watch.statuses["/health"] == [200, 503, 200]
    assert loss.watch.statuses["/readyz"] == [200, 503, 200]
    recovered = subject.until_logged("the engine is back", before.restarts + 1)[-1]
    assert recovered["seconds"] > 0
    ended = subject.log("the engine has ended")[-1]
    assert ended["ending"] == {"killed": "SIGKILL", "frozen": "SIGKILL", "buggy": "exit code 1"}[how]
    assert (ended["lost"], ended["requeued"]) == (0, 60 + (how == "buggy"))
    if how == "frozen":
        assert subject.log("the engine is stuck; its stacks follow")


def _check_books(loss: Loss, restarts: int) -> None:
    assert loss.watch.unbalanced == []
    last, first = loss.watch.scrapes[-1], loss.watch.scrapes[0]
    assert last.is_idle
    assert last.restarts == restarts
    assert last.finished["error"] == first.finished["error"]
    assert last.accepted - first.accepted - len(loss.outcomes) in {0, 1}
    counted = [each.generated for each in loss.watch.scrapes]
    assert counted == sorted(counted), "counters never go back"


@pytest.mark.parametrize("kind", [GUILTY, UNKNOWN])
def test_a_failed_step_ends_only_the_request_at_fault(
    subject: Subject, expected: list[str], kind: int
) -> None:
    guilty: list[Outcome] = []

    async def strike() -> None:
        guilty.append(await complete(subject.port, {"prompt": marked(kind), "max_tokens": 5}))

    before = asyncio.run(scrape(subject.port))
    loss = asyncio.run(lose(subject.port, strike, away=False))
    assert guilty[0].status == 500
    assert [each.text for each in loss.outcomes] == expected
    assert all(each.is_whole for each in loss.outcomes)
    assert loss.watch.unbalanced == []
    assert loss.watch.statuses == {"/livez": [200], "/readyz": [200], "/health": [200]}
    last = loss.watch.scrapes[-1]
    assert (last.restarts, last.is_idle) == (before.restarts, True)
    assert last.finished["error"] - before.finished["error"] == 1
