"""Requests that wait for answers: the engine's events are sorted to their replies, and they outlive the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import attrs

from nanoserve.adapters.engine_process.client.ledger import ACCEPTED, GIVEN_UP, REFUSED, RUNNING, Ledger
from nanoserve.ports import errors
from nanoserve.ports.engine_link import Abort, Add, Command, Refused
from nanoserve.ports.errors import BadValueError, DuplicateRequestError, EngineDiedError, NanoserveError
from nanoserve.ports.events import EngineEvent, SequenceAdmitted, SequencePreempted, TokensGenerated
from nanoserve.ports.request import TRIED, FinishReason, Request
from nanoserve.ports.step import TokenLogprobs

MOST_ENGINES: Final = 2
"""A request that this many engines were computing when they died is given up: it may be the cause."""
LAST_ENGINES: Final = 4
"""A request that the last of them brought further than it is tried alone is given up at this many instead: they may have died of others."""


@attrs.define
class _Pile:
    """Unread output of one sequence; adding to it costs the addition only."""

    last: TokensGenerated
    token_ids: list[int]
    texts: list[str]
    logprobs: list[TokenLogprobs]

    def add(self, event: TokensGenerated) -> None:
        self.last = event
        self.token_ids += event.token_ids
        self.texts.append(event.text)
        self.logprobs += event.logprobs

    def joined(self) -> TokensGenerated:
        return attrs.evolve(
            self.last,
            token_ids=tuple(self.token_ids),
            text="".join(self.texts),
            logprobs=tuple(self.logprobs),
        )


class PendingReply:
    """The `Reply` of one request, with the engine client's facts about it.

    A request that does not stream is answered at once when all of its sequences have ended: until then nothing of it
    has been delivered, and the next engine starts it again. A stream goes on in the next one, and so does any request that an engine has started again.

    Attributes:
        reports: whether engines report its output while it grows, and `gained`, how many tokens of each sequence the living one has reported.
        engine_has_it: whether it was handed to the living engine; `num_deaths` how many engines have died over it.
        running: the indices of its sequences that hold a row.
        cancelled: whether its reader has left.
        patience: seconds from `submitted_at` on that it waits for its beginning; None if it has begun, or waits however long.
    """

    def __init__(self, request: Request, ledger: Ledger, cancel: Callable[[PendingReply], None]) -> None:
        self.request = request
        self.submitted_at = time.monotonic()
        self.patience = request.queue_timeout
        self.num_deaths = 0
        self.engine_has_it = False
        self.reports, self.gained = request.stream, [0] * request.sampling.n
        self.is_over = False
        self.cancelled = False
        self._ledger = ledger
        self._cancel = cancel
        self._notes: dict[tuple[type[EngineEvent], int], EngineEvent] = {}
        self._piles: dict[int, TokensGenerated | _Pile] = {}
        self.running: set[int] = set()
        self._ended: set[int] = set()
        self._ids: list[list[int]] = [[] for _ in range(request.sampling.n)]
        self._lengths = [0] * request.sampling.n
        self._error: NanoserveError | None = None
        self._reader: asyncio.Future[None] | None = None
        ledger.add(ACCEPTED, request.sampling.n)

    @property
    def begun(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """As in `Request`; sequences that have ended are computed from the start, and what they say is dropped."""
        said = enumerate(zip(map(tuple, self._ids), self._lengths, strict=True))
        begun = tuple([((), 0) if index in self._ended else each for index, each in said])
        return begun if any(map(any, begun)) else ()

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        while True:
            if (self._piles or self._notes) and (self.request.stream or self.is_over):
                yield self._take()
            elif self._error is not None:
                raise self._error
            elif self.is_over:
                return
            else:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader

    def cancel(self) -> None:
        if not self.cancelled and not self.is_over:
            self.cancelled = True
            self._cancel(self)

    def take(self, event: EngineEvent) -> None:
        """Note one event. Events that a second engine repeats for an ended sequence are dropped."""
        if event.index in self._ended:
            return
        if isinstance(event, TokensGenerated):
            self._pile_up(event)
            if self.reports:
                self.patience = None
                self._ids[event.index] += event.token_ids
                self._lengths[event.index] += len(event.text)
                self.gained[event.index] += len(event.token_ids)
            if event.finish_reason is not None:
                self._note_end(event.index, event.finish_reason.value)
        else:
            self._notes[type(event), event.index] = event
            if isinstance(event, SequenceAdmitted):
                self._set_running(event.index, True)
                return  # a reader has no use for it alone
            if isinstance(event, SequencePreempted):
                self._set_running(event.index, False)
        if self.request.stream or self.is_over:
            self._wake_reader()

    def end(self, reason: FinishReason) -> None:
        """End every living sequence here, without the engine."""
        for index in range(self.request.sampling.n):
            if index not in self._ended:
                self.take(
                    TokensGenerated(self.request.request_id, index, (), "", (), reason, None, 0, 0, None)
                )

    def fail(self, error: NanoserveError, reason: str = FinishReason.ERROR.value) -> None:
        """End it with an error, which the reader gets after the unread output."""
        for index in range(self.request.sampling.n):
            if index not in self._ended:
                self._note_end(index, reason)
        self._error = error
        self._wake_reader()

    def forget_engine(self) -> None:
        """Its engine is gone: drop what was piled up of sequences that another one must compute from the start."""
        self.engine_has_it = False
        if not self.reports:
            self._notes.clear()
            self._piles = {index: pile for index, pile in self._piles.items() if index in self._ended}
        self.reports, self.gained = True, [0] * self.request.sampling.n
        self._ledger.add(RUNNING, -len(self.running))
        self.running.clear()

    def _pile_up(self, event: TokensGenerated) -> None:
        pile = self._piles.get(event.index)
        if pile is None:
            self._piles[event.index] = event
        elif isinstance(pile, _Pile):
            pile.add(event)
        else:
            joined = _Pile(pile, [*pile.token_ids], [pile.text], [*pile.logprobs])
            self._piles[event.index] = joined
            joined.add(event)

    def _take(self) -> list[EngineEvent]:
        batch = list(self._notes.values())
        batch += [each.joined() if isinstance(each, _Pile) else each for each in self._piles.values()]
        self._notes.clear()
        self._piles.clear()
        return batch

    def _set_running(self, index: int, running: bool) -> None:
        before = len(self.running)
        if running:
            self.running.add(index)
        else:
            self.running.discard(index)
        self._ledger.add(RUNNING, len(self.running) - before)

    def _note_end(self, index: int, reason: str) -> None:
        self._ended.add(index)
        self.is_over = len(self._ended) == self.request.sampling.n
        self._set_running(index, False)
        self._ledger.add(reason)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def reported_error(name: str, message: str) -> NanoserveError:
    """The error that the engine's process raised; one of no class of ours becomes a plain `NanoserveError`."""
    if name == BadValueError.__name__:
        parameter, _, rest = message.partition(": ")
        return BadValueError(parameter, rest)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, NanoserveError):
        return kind(message)
    return NanoserveError(message)


class Requests:
    """The requests that have not ended, and their replies; `engine` takes commands to the engine, and is None while there is none."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.engine: Callable[[Command], None] | None = None
        self.ledger = ledger or Ledger()
        self._living: dict[str, PendingReply] = {}

    def __len__(self) -> int:
        return len(self._living)

    def send(self, command: Command) -> None:
        """Hand a command to the engine, where there is one."""
        if self.engine is not None:
            self.engine(command)

    def open(self, request: Request) -> PendingReply:
        """Hand a request over, to the next engine if there is none; its reply."""
        if request.request_id in self._living:
            raise DuplicateRequestError(f"request {request.request_id!r} is already being served")
        reply = PendingReply(request, self.ledger, self._cancel)
        self._living[request.request_id] = reply
        if self.engine is not None:
            self._hand_over(reply)
        return reply

    def hand_over_waiting(self) -> None:
        """An engine is ready: send it the waiting requests, the oldest first."""
        for reply in self._waiting():
            self._hand_over(reply)

    def take(self, events: Sequence[EngineEvent]) -> None:
        """Sort events to their replies."""
        living = self._living
        for event in events:
            reply = living.get(event.request_id)
            if reply is not None:
                reply.take(event)
                if reply.is_over:
                    del living[event.request_id]

    def refuse(self, refused: Refused) -> None:
        """The engine has turned a request away."""
        if reply := self._living.get(refused.request_id):
            self._fail(reply, reported_error(refused.error, refused.message), REFUSED)

    def lose_engine(self, *, any_ran: bool) -> tuple[int, int]:
        """The engine has died. Requests that can go on wait for the next one, all others end. Returns how many wait, and how many have ended.

        `any_ran` says whether a request of any process held a row. Those that did may be the cause; where none did, all may.
        """
        self.engine = None
        died, requeued = list(self._living.values()), 0
        for reply in died:
            reply.num_deaths += bool(reply.running) if any_ran else reply.engine_has_it
            if reply.cancelled:
                self._end(reply, FinishReason.ABORT)
            elif reply.num_deaths < (LAST_ENGINES if max(reply.gained) > TRIED else MOST_ENGINES):
                reply.forget_engine()
                requeued += 1
            else:
                self.ledger.add(GIVEN_UP)
                times = "twice" if reply.num_deaths == MOST_ENGINES else f"{reply.num_deaths} times"
                message = f"the engine ended {times} while it computed this request, which is not tried again"
                self._fail(reply, EngineDiedError(message))
        return requeued, len(died) - requeued

    def end_overdue(self, now: float) -> None:
        """End the requests without an engine that would have run out of time with one."""
        for reply in self._waiting():
            deadline, patience = reply.request.deadline, reply.patience
            is_late = deadline is not None and now >= deadline
            if is_late or (patience is not None and now - reply.submitted_at >= patience):
                self._end(reply, FinishReason.TIMEOUT)

    def fail_all(self, error: NanoserveError) -> None:
        """End every request with an error."""
        for reply in list(self._living.values()):
            self._fail(reply, error)

    def _waiting(self) -> list[PendingReply]:
        return [reply for reply in self._living.values() if not reply.engine_has_it]

    def _hand_over(self, reply: PendingReply) -> None:
        request, patience, waited = reply.request, reply.patience, time.monotonic() - reply.submitted_at
        left = None if patience is None else max(0.0, patience - waited)
        died, begun = reply.num_deaths > 0, reply.begun
        try:
            how: dict[str, Any] = {"is_suspect": died, "begun": begun, "stream": reply.reports}
            self.send(Add(attrs.evolve(request, queue_timeout=left, **how)))
        except BadValueError as error:
            self._fail(reply, error)
        else:
            reply.engine_has_it = True

    def _cancel(self, reply: PendingReply) -> None:
        if reply.engine_has_it:
            self.send(Abort(reply.request.request_id))
        else:
            self._end(reply, FinishReason.ABORT)

    def _end(self, reply: PendingReply, reason: FinishReason) -> None:
        del self._living[reply.request.request_id]
        reply.end(reason)

    def _fail(
        self, reply: PendingReply, error: NanoserveError, reason: str = FinishReason.ERROR.value
    ) -> None:
        del self._living[reply.request.request_id]
        reply.fail(error, reason)
