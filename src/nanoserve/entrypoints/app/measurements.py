"""Keeps books of every request that is handed to the engine, and never gets in its way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import structlog

from nanoserve.entrypoints.app.books import Books
from nanoserve.entrypoints.app.request_facts import CURRENT, RequestFacts
from nanoserve.ports.driven import Clock
from nanoserve.ports.driving import Reply
from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.errors import BadValueError, RequestRefusedError
from nanoserve.ports.events import EngineEvent, SequenceAdmitted, SequenceTimes, TokensGenerated
from nanoserve.ports.request import FinishReason, Request

SpanWriter = Callable[[Request, float, SequenceTimes], None]
"""Told of each sequence that ended: its request, when that was accepted, and its times."""


class Measurements:
    """Keeps books of requests and their answers.

    Attributes:
        books: how long requests took, and how many there are of each class.
    """

    def __init__(self, clock: Clock, *, spans: SpanWriter | None = None) -> None:
        self.books = Books()
        self._clock = clock
        self._spans = spans

    def measured(self, request: Request, reply: Reply) -> Reply:
        """The same reply, counted while it is read; from now on the request is accepted."""
        return _MeasuredReply(reply, request, self.books, self._clock, self._spans)

    def refresh(self, state: EngineState | None) -> None:
        """Look at the engine's books; the more often, the finer is what is known of its steps and of what is recent."""
        self.books.timings.mark(self._clock.now())
        if state is not None:
            self.books.timings.observe_steps(state)


class _MeasuredReply:
    """One request on its way (`Reply`)."""

    def __init__(
        self, reply: Reply, request: Request, books: Books, clock: Clock, spans: SpanWriter | None
    ) -> None:
        self._reply = reply
        self._request = request
        self._books = books
        self._clock = clock
        self._spans = spans
        self._accepted = clock.now()
        self._living = set(range(request.sampling.n))
        self._last_token: dict[int, float] = {}
        self._facts = CURRENT.get() or RequestFacts(request_id="")
        self._facts.engine_ids.append(request.request_id)
        self._facts.prompt_tokens += len(request.prompt_token_ids)
        books.accept(request.request_class, len(self._living))

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        """What has happened since the last look."""
        reason = FinishReason.ABORT.value
        try:
            async for events in self._reply.events():
                self._note(events)
                yield events
        except (RequestRefusedError, BadValueError):
            reason = "refused"
            raise
        except Exception:
            reason = FinishReason.ERROR.value
            raise
        finally:
            self._end(self._living, reason)

    def cancel(self) -> None:
        """Abort the request."""
        self._end(self._living, FinishReason.ABORT.value)
        self._reply.cancel()

    def _note(self, events: Sequence[EngineEvent]) -> None:
        try:
            now = self._clock.now()
            for event in events:
                if isinstance(event, TokensGenerated):
                    self._note_tokens(event, now)
                elif isinstance(event, SequenceAdmitted) and not event.resumed:
                    self._facts.cached_tokens += event.num_cached_tokens
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the books, the answer goes on
            structlog.get_logger().error("an event could not be counted", exc_info=error)

    def _note_tokens(self, event: TokensGenerated, now: float) -> None:
        count = len(event.token_ids)
        if self._request.stream and count:
            last = self._last_token.get(event.index)
            self._last_token[event.index] = now
            if last is not None:
                self._books.timings.inter_token.observe((now - last) / count, count)
        if event.finish_reason is not None and event.index in self._living:
            self._end({event.index}, event.finish_reason.value)
            self._note_end(event)

    def _note_end(self, event: TokensGenerated) -> None:
        timings = self._books.timings
        timings.prompt_tokens.observe(len(self._request.prompt_token_ids))
        timings.generated_tokens.observe(event.num_generated)
        self._facts.generated_tokens += event.num_generated
        if event.times is not None:
            self._note_times(event.times, event.num_generated)

    def _note_times(self, times: SequenceTimes, generated: int) -> None:
        timings, start = self._books.timings, self._accepted
        if times.first_scheduled is not None:
            self._facts.queue = max(times.first_scheduled - start, 0.0)
            timings.queue.observe(self._facts.queue)
        if times.first_token is not None and times.first_scheduled is not None:
            self._facts.first_token = max(times.first_token - start, 0.0)
            timings.first_token.observe(self._facts.first_token)
            timings.prefill.observe(times.first_token - times.first_scheduled)
        if times.finished is not None:
            timings.whole.observe(max(times.finished - start, 0.0))
            self._note_decode(times, generated)
        if self._spans is not None:
            self._spans(self._request, start, times)

    def _note_decode(self, times: SequenceTimes, generated: int) -> None:
        if times.first_token is None or times.finished is None:
            return
        seconds = times.finished - times.first_token
        self._books.timings.decode.observe(seconds)
        if not self._request.stream and generated > 1:
            self._books.timings.inter_token.observe(seconds / (generated - 1), generated - 1)

    def _end(self, indices: Iterable[int], reason: str) -> None:
        ended = self._living.intersection(indices)
        self._living -= ended
        if ended:
            self._books.finish(self._request.request_class, len(ended))
            self._facts.finish += [reason] * len(ended)
