"""The reply to one submitted request: the engine's events, joined until somebody reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import attrs

from nanoserve.adapters.engine_process.client.ledger import Ledger
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.events import EngineEvent, SequenceAdmitted, SequencePreempted, TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import TokenLogprobs

MOST_ENGINES: Final = 2
"""A request that was with so many engines when they died is given up: it may be what kills them."""


@attrs.define
class _Pile:
    """Output of one sequence that nobody has read yet; adding to it costs what is added."""

    last: TokensGenerated
    token_ids: list[int]
    texts: list[str]
    logprobs: list[TokenLogprobs]

    @classmethod
    def of(cls, event: TokensGenerated) -> _Pile:
        return cls(event, [*event.token_ids], [event.text], [*event.logprobs])

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
    """The `Reply` of one request, and what the engine client must know of it.

    A request that does not stream is answered at once when all of its sequences have ended: until then nothing of it
    has been delivered, and any engine can still start it anew.

    Attributes:
        num_engines: how many engines it was handed to; `engine_has_it` whether the living one is among them.
        is_over: whether nothing more will come.
        cancelled: whether its reader has left; `has_been_read` whether it has been given output.
    """

    def __init__(self, request: Request, ledger: Ledger, cancel: Callable[[PendingReply], None]) -> None:
        self.request = request
        self.submitted_at = time.monotonic()
        self.num_engines = 0
        self.engine_has_it = False
        self.is_over = False
        self.cancelled = False
        self._ledger = ledger
        self._cancel = cancel
        self._notes: dict[tuple[type[EngineEvent], int], EngineEvent] = {}
        self._piles: dict[int, TokensGenerated | _Pile] = {}
        self._running: set[int] = set()
        self._ended: set[int] = set()
        self.has_been_read = False
        self._error: NanoserveError | None = None
        self._reader: asyncio.Future[None] | None = None
        ledger.note_accepted(request.sampling.n)

    @property
    def can_start_anew(self) -> bool:
        """Whether another engine may compute it from the start without anybody noticing."""
        return not self.has_been_read and not self.cancelled and self.num_engines < MOST_ENGINES

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        """What has come since the last batch, again and again; raises the error that it ends with."""
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
        """End it; the engine is asked once."""
        if not self.cancelled and not self.is_over:
            self.cancelled = True
            self._cancel(self)

    def take(self, event: EngineEvent) -> None:
        """Note one event. What a second engine repeats of a sequence that has ended already is dropped."""
        if event.index in self._ended:
            return
        if isinstance(event, TokensGenerated):
            self._pile_up(event)
            if event.finish_reason is not None:
                self._note_end(event.index, event.finish_reason.value)
        else:
            self._notes[type(event), event.index] = event
            if isinstance(event, SequenceAdmitted):
                self._set_running(event.index, True)
            elif isinstance(event, SequencePreempted):
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
        """End it with an error, which the reader gets behind what was piled up before it."""
        for index in range(self.request.sampling.n):
            if index not in self._ended:
                self._note_end(index, reason)
        self._error = error
        self._wake_reader()

    def forget_engine(self) -> None:
        """Its engine is gone: drop what was piled up of sequences that another one must compute anew."""
        self.engine_has_it = False
        self._notes.clear()
        self._piles = {index: pile for index, pile in self._piles.items() if index in self._ended}
        self._ledger.note_running(-len(self._running))
        self._running.clear()

    def _pile_up(self, event: TokensGenerated) -> None:
        pile = self._piles.get(event.index)
        if pile is None:
            self._piles[event.index] = event
        elif isinstance(pile, _Pile):
            pile.add(event)
        else:
            self._piles[event.index] = joined = _Pile.of(pile)
            joined.add(event)

    def _take(self) -> list[EngineEvent]:
        batch = list(self._notes.values())
        batch += [each.joined() if isinstance(each, _Pile) else each for each in self._piles.values()]
        self.has_been_read = self.has_been_read or any(_shows_output(event) for event in batch)
        self._notes.clear()
        self._piles.clear()
        return batch

    def _set_running(self, index: int, running: bool) -> None:
        before = len(self._running)
        if running:
            self._running.add(index)
        else:
            self._running.discard(index)
        self._ledger.note_running(len(self._running) - before)

    def _note_end(self, index: int, reason: str) -> None:
        self._ended.add(index)
        self.is_over = len(self._ended) == self.request.sampling.n
        self._set_running(index, False)
        self._ledger.note_end(reason)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _shows_output(event: EngineEvent) -> bool:
    return not isinstance(event, (SequenceAdmitted, SequencePreempted))
