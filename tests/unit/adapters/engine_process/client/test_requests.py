from __future__ import annotations

import asyncio
import time
from typing import Any

import attrs
import pytest

from nanoserve.adapters.engine_process.client.requests import (
    LAST_ENGINES,
    MOST_ENGINES,
    PendingReply,
    Requests,
)
from nanoserve.ports.engine_link import Abort, Add, Command, Refused
from nanoserve.ports.errors import BadValueError, DuplicateRequestError, EngineDiedError, PromptTooLongError
from nanoserve.ports.events import (
    EngineEvent,
    PromptScored,
    SequenceAdmitted,
    SequencePreempted,
    SequenceTimes,
    TokensGenerated,
)
from nanoserve.ports.request import TRIED, FinishReason
from nanoserve.ports.step import TokenLogprobs
from tests.unit.adapters.engine_process.client.engines import read, request

TIMES = SequenceTimes(1.0, 2.0, 3.0, 4.0)


def tokens(name: str, *ids: int, index: int = 0, end: FinishReason | None = None) -> TokensGenerated:
    text = "".join(f"{token} " for token in ids)
    scores = tuple(TokenLogprobs(token, -1.0, 1) for token in ids)
    return TokensGenerated(name, index, ids, text, scores, end, None, 0, 0, TIMES if end else None)


class Board:
    """Requests, and what was said to the engine."""

    def __init__(self) -> None:
        self.said: list[Command] = []
        self.requests = Requests()
        self.requests.engine = self.said.append

    @property
    def aborted(self) -> list[str]:
        return [each.request_id for each in self.said if isinstance(each, Abort)]

    @property
    def added(self) -> list[str]:
        return [each.request.request_id for each in self.said if isinstance(each, Add)]

    @property
    def begun(self) -> dict[str, Any]:
        return {each.request.request_id: each.request.begun for each in self.said if isinstance(each, Add)}

    def open(self, name: str, *, n: int = 1, stream: bool = True, **more: Any) -> PendingReply:
        return self.requests.open(request(name, n=n, stream=stream, **more))

    def turn(self, *events: EngineEvent) -> None:
        self.requests.take(events)
        self.check()

    def replace_engine(self) -> tuple[int, int]:
        aftermath = self.lose_engine()
        self.check()
        self.said.clear()
        self.requests.engine = self.said.append
        self.requests.hand_over_waiting()
        return aftermath

    def lose_engine(self) -> tuple[int, int]:
        return self.requests.lose_engine(any_ran=self.requests.ledger.read().running > 0)

    def check(self) -> None:
        ledger = self.requests.ledger.read()
        assert ledger.waiting >= 0
        assert ledger.running >= 0
        assert ledger.accepted == sum(ledger.finished.values()) + ledger.running + ledger.waiting

    @property
    def counts(self) -> tuple[int, int, int]:
        ledger = self.requests.ledger.read()
        return ledger.accepted, ledger.running, ledger.waiting


async def test_events_go_to_their_requests_and_the_answer_ends() -> None:
    board = Board()
    one, two = board.open("one"), board.open("two")
    board.turn(tokens("one", 1), tokens("two", 5), tokens("nobody", 9))
    board.turn(tokens("two", 6))
    board.turn(tokens("one", 2, end=FinishReason.LENGTH))
    board.turn(tokens("two", end=FinishReason.STOP))
    assert (await read(one)).ids == [1, 2]
    answer = await read(two)
    assert (answer.ids, answer.reasons) == ([5, 6], {0: FinishReason.STOP})
    assert len(board.requests) == 0


async def test_what_piles_up_is_joined_into_one_event_per_sequence() -> None:
    board = Board()
    reply = board.open("r", n=2)
    board.turn(SequenceAdmitted("r", 0, 1, 0, resumed=False), PromptScored("r", 0, (None,)))
    for token in range(100):
        board.turn(tokens("r", token), tokens("r", token + 1000, index=1))
    last = TokensGenerated("r", 0, (100,), "100 ", (), FinishReason.LENGTH, "s", 101, 2, TIMES, "why")
    board.turn(last)
    batch = await anext(aiter(reply.events()))
    assert [type(event) for event in batch] == [
        SequenceAdmitted,
        PromptScored,
        TokensGenerated,
        TokensGenerated,
    ]
    joined = batch[2]
    assert isinstance(joined, TokensGenerated)
    assert joined.token_ids == tuple(range(101))
    assert joined.text == "".join(f"{token} " for token in range(101))
    assert [score.token_id for score in joined.logprobs] == list(range(100))
    grown = {name: getattr(joined, name) for name in ("token_ids", "text", "logprobs")}
    assert joined == attrs.evolve(last, **grown)


async def test_preemptions_do_not_pile_up() -> None:
    board = Board()
    reply = board.open("r")
    for _ in range(50):
        board.turn(SequenceAdmitted("r", 0, 1, 0, resumed=True), SequencePreempted("r", 0))
    assert len(await anext(aiter(reply.events()))) == 2
    assert board.counts == (1, 0, 1)


async def test_a_waiting_reader_is_woken_once_per_report() -> None:
    board = Board()
    reply = board.open("r", n=3)
    reading = asyncio.create_task(read(reply))
    for _ in range(5):
        await asyncio.sleep(0)
        board.turn(*(tokens("r", 1, index=index) for index in range(3)))
    await asyncio.sleep(0)
    board.turn(*(tokens("r", index=index, end=FinishReason.STOP) for index in range(3)))
    answer = await reading
    assert answer.reads == 6
    assert answer.token_ids == dict.fromkeys(range(3), [1] * 5)


async def test_an_unstreamed_answer_comes_whole() -> None:
    board = Board()
    reply = board.open("r", n=2, stream=False)
    reading = asyncio.create_task(read(reply))
    board.turn(SequenceAdmitted("r", 0, 1, 0, resumed=False))
    board.turn(tokens("r", 1, 2, end=FinishReason.LENGTH))
    await asyncio.sleep(0)
    assert not reading.done()
    board.turn(tokens("r", 3, index=1, end=FinishReason.LENGTH))
    answer = await reading
    assert answer.reads == 1
    assert answer.token_ids == {0: [1, 2], 1: [3]}


async def test_the_engines_refusal_is_raised_as_the_error_it_was() -> None:
    board = Board()
    long, bad, odd = board.open("long"), board.open("bad"), board.open("odd")
    board.requests.refuse(Refused("long", "PromptTooLongError", "the prompt has 9 tokens"))
    board.requests.refuse(Refused("bad", "BadValueError", "stop: needs a tokenizer"))
    board.requests.refuse(Refused("odd", "KeyError", "the request could not be checked"))
    board.requests.refuse(Refused("nobody", "KeyError", ""))
    assert isinstance((await read(long)).error, PromptTooLongError)
    error = (await read(bad)).error
    assert isinstance(error, BadValueError)
    assert (error.parameter, str(error)) == ("stop", "stop: needs a tokenizer")
    assert str((await read(odd)).error) == "the request could not be checked"
    board.check()
    assert board.requests.ledger.read().finished["refused"] == 3


async def test_the_ledger_follows_every_sequence() -> None:
    board = Board()
    board.open("r", n=2)
    assert board.counts == (2, 0, 2)
    board.turn(SequenceAdmitted("r", 0, 1, 0, resumed=False), tokens("r", 1))
    assert board.counts == (2, 1, 1)
    board.turn(SequencePreempted("r", 0), SequenceAdmitted("r", 1, 1, 0, resumed=False))
    assert board.counts == (2, 1, 1)
    board.turn(tokens("r", end=FinishReason.ABORT), tokens("r", index=1, end=FinishReason.ABORT))
    assert board.counts == (2, 0, 0)
    assert board.requests.ledger.read().finished["abort"] == 2


async def test_cancelling_asks_the_engine_once_and_not_after_the_end() -> None:
    board = Board()
    reply = board.open("r")
    for _ in range(3):
        reply.cancel()
    assert board.aborted == ["r"]
    board.turn(tokens("r", end=FinishReason.ABORT))
    assert (await read(reply)).reasons == {0: FinishReason.ABORT}
    reply.cancel()
    assert board.aborted == ["r"]


async def test_without_an_engine_cancelling_ends_the_request_here() -> None:
    board = Board()
    board.requests.engine = None
    reply = board.open("r", n=2)
    reply.cancel()
    assert board.said == []
    assert set((await read(reply)).reasons.values()) == {FinishReason.ABORT}
    assert board.counts == (2, 0, 0)


async def test_when_the_engine_dies_replies_go_on_from_what_there_is_of_them() -> None:
    board = Board()
    seen, unseen, silent, left = (board.open(name) for name in ("seen", "unseen", "silent", "left"))
    board.turn(*(SequenceAdmitted(name, 0, 1, 0, resumed=False) for name in ("seen", "unseen", "left")))
    board.turn(tokens("seen", 1), tokens("unseen", 2))
    assert await anext(aiter(seen.events()))
    board.turn(tokens("seen", 30))
    left.cancel()
    assert board.replace_engine() == (3, 1)
    assert (await read(left)).reasons == {0: FinishReason.ABORT}
    assert board.begun == {"seen": (((1, 30), 5),), "unseen": (((2,), 2),), "silent": ()}
    assert board.counts == (4, 0, 3)
    board.turn(tokens("silent", 3))
    board.turn(*(tokens(name, 4, end=FinishReason.LENGTH) for name in ("seen", "unseen", "silent")))
    assert (await read(seen)).ids == [30, 4], "it has 1 already"
    assert (await read(unseen)).ids == [2, 4]
    assert (await read(silent)).ids == [3, 4]


async def test_a_stream_goes_on_in_the_engine_after_the_next_too_though_it_only_waited_for_that() -> None:
    board = Board()
    board.open("r", n=2)
    board.turn(SequenceAdmitted("r", 1, 1, 0, resumed=False), tokens("r", 7, index=1))
    board.turn(SequencePreempted("r", 1))
    for _ in range(3):
        assert board.requests.lose_engine(any_ran=True) == (1, 0), "others ran"
        board.said.clear()
        board.requests.engine = board.said.append
        board.requests.hand_over_waiting()
        assert board.begun == {"r": (((), 0), ((7,), 2))}


async def test_a_sequence_that_has_ended_is_not_begun() -> None:
    board = Board()
    board.open("r", n=2)
    board.turn(tokens("r", 7), tokens("r", 8, end=FinishReason.STOP), tokens("r", 9, index=1))
    board.replace_engine()
    assert board.begun == {"r": (((), 0), ((9,), 2))}


async def test_knowing_that_a_request_was_admitted_is_not_output() -> None:
    board = Board()
    reply = board.open("r")
    board.turn(SequenceAdmitted("r", 0, 1, 0, resumed=False))
    assert await anext(aiter(reply.events()))
    assert board.lose_engine() == (1, 0)


async def test_a_sequence_that_ended_before_the_death_is_not_computed_twice() -> None:
    board = Board()
    reply = board.open("r", n=2, stream=False)
    board.turn(tokens("r", 1, 2, end=FinishReason.LENGTH))
    board.replace_engine()
    board.turn(tokens("r", 1, 2, end=FinishReason.LENGTH), tokens("r", 3, index=1, end=FinishReason.STOP))
    answer = await read(reply)
    assert answer.token_ids == {0: [1, 2], 1: [3]}
    assert board.requests.ledger.read().finished["length"] == 1
    board.check()


async def test_a_request_that_was_there_when_two_engines_died_is_given_up() -> None:
    board = Board()
    reply = board.open("r")
    for _ in range(MOST_ENGINES - 1):
        assert board.replace_engine() == (1, 0)
    assert board.replace_engine() == (0, 1)
    error = (await read(reply)).error
    assert isinstance(error, EngineDiedError)
    assert "twice" in str(error)
    assert board.counts == (1, 0, 0)


async def test_an_answer_in_one_goes_on_from_where_a_second_engine_left_it() -> None:
    board = Board()
    reply = board.open("r", stream=False)
    board.replace_engine()
    board.turn(tokens("r", *range(TRIED + 1)))
    assert board.replace_engine() == (1, 0)
    (again,) = board.said
    assert isinstance(again, Add)
    assert again.request.stream
    assert again.request.begun[0][0] == tuple(range(TRIED + 1))
    board.turn(tokens("r", 50, end=FinishReason.LENGTH))
    answer = await read(reply)
    assert answer.ids == [*range(TRIED + 1), 50]
    assert answer.texts[0] == "".join(f"{token} " for token in answer.ids)


@pytest.mark.parametrize(("gained", "engines"), [(TRIED, MOST_ENGINES), (TRIED + 1, LAST_ENGINES)])
async def test_a_request_that_goes_further_than_it_is_tried_outlives_more_engines(
    gained: int, engines: int
) -> None:
    board = Board()
    reply = board.open("r")
    for _ in range(engines - 1):
        board.turn(tokens("r", *range(gained)))
        assert board.replace_engine() == (1, 0)
    board.turn(tokens("r", *range(gained)))
    assert board.replace_engine() == (0, 1)
    assert ("twice" if engines == 2 else f"{engines} times") in str((await read(reply)).error)


async def test_only_those_on_rows_of_dying_engines_are_suspected_and_given_up() -> None:
    board = Board()
    guilty, beside, waiting = (board.open(name) for name in ("guilty", "beside", "waiting"))
    board.turn(*(SequenceAdmitted(each, 0, 1, 0, resumed=False) for each in ("guilty", "beside")))
    assert board.replace_engine() == (3, 0)
    suspects = [each.request.request_id for each in board.said if each.request.is_suspect]  # type: ignore[union-attr]
    assert suspects == ["guilty", "beside"]
    board.turn(SequenceAdmitted("beside", 0, 1, 0, resumed=False), SequencePreempted("beside", 0))
    board.turn(SequenceAdmitted("guilty", 0, 1, 0, resumed=False))
    assert board.replace_engine() == (2, 1)
    assert "twice" in str((await read(guilty)).error)
    assert board.requests.ledger.read().given_up == 1
    assert board.added == ["beside", "waiting"]
    for _ in range(5):
        assert board.requests.lose_engine(any_ran=True) == (2, 0), "others ran"
    board.requests.hand_over_waiting()
    assert (beside.num_deaths, waiting.num_deaths) == (1, 0)


async def test_what_waits_for_an_engine_runs_out_of_time_as_it_would_with_one() -> None:
    board = Board()
    now = time.monotonic()
    board.requests.engine = None
    late = board.requests.open(request("late", deadline=now + 5))
    impatient = board.requests.open(request("impatient", queue_timeout=3.0))
    board.requests.open(request("calm"))
    board.requests.end_overdue(now + 2)
    assert len(board.requests) == 3
    board.requests.end_overdue(now + 6)
    assert (await read(late)).reasons == {0: FinishReason.TIMEOUT}
    assert (await read(impatient)).reasons == {0: FinishReason.TIMEOUT}
    board.requests.engine = board.said.append
    board.requests.hand_over_waiting()
    assert board.added == ["calm"]
    board.requests.end_overdue(now + 1e6)
    assert len(board.requests) == 1


@pytest.mark.parametrize(("waited", "left"), [(1.0, 2.0), (9.0, 0.0)])
async def test_patience_spent_before_an_engine_took_the_request_is_spent(
    monkeypatch: pytest.MonkeyPatch, waited: float, left: float
) -> None:
    board = Board()
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    board.open("impatient", queue_timeout=3.0)
    board.open("calm")
    board.open("begun", queue_timeout=3.0)
    board.turn(tokens("begun", 1))
    monkeypatch.setattr(time, "monotonic", lambda: 5.0 + waited)
    board.replace_engine()
    timeouts = [each.request.queue_timeout for each in board.said if isinstance(each, Add)]
    assert timeouts == [left, None, None]


async def test_two_living_requests_cannot_share_a_key() -> None:
    board = Board()
    board.open("r")
    with pytest.raises(DuplicateRequestError):
        board.open("r")
    board.check()
    board.turn(tokens("r", end=FinishReason.STOP))
    board.open("r")
