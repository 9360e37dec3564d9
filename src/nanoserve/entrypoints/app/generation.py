"""One accepted order: its reservation, and the pieces of its sequences as the engine makes them.

A reservation is taken before any work is done for an order, and refused where too much waits.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from typing import Final

import attrs
import structlog

from nanoserve.domain.text.dialects.parser import AnswerParser
from nanoserve.domain.text.dialects.tokenized import TokenizedDialect, choose_dialect
from nanoserve.entrypoints.app.measurements import Meter
from nanoserve.entrypoints.app.orders import CURRENT, ServiceSettings
from nanoserve.ports.counts import Counts
from nanoserve.ports.driven import DialectFacts
from nanoserve.ports.driving import Reply
from nanoserve.ports.errors import (
    BadValueError,
    DeadlineError,
    DrainingError,
    OverloadedError,
    RequestRefusedError,
    StepFailedError,
)
from nanoserve.ports.events import (
    EngineEvent,
    PromptPooled,
    PromptScored,
    SequenceAdmitted,
    SequenceRouted,
    TokensGenerated,
)
from nanoserve.ports.grammar import AT_FAULT, check_fault
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import MAX_SEQUENCES_PER_REQUEST, PARAMETERS, Kind
from nanoserve.ports.step import TokenLogprobs
from nanoserve.ports.tool_calls import Tool

_LOGGED: Final = (Kind.NUMBER, Kind.INTEGER, Kind.SWITCH)
"""Texts and token ids may be words of a prompt."""
RESERVATION_NAMES: Final = (
    *("draining", "living", "waiting", "waiting_tokens", "waiting_bytes"),
    *("running_sequences", "tokenizing_now"),
)
"""The counters: `running_sequences` of the started requests, `tokenizing_now` texts that belong to no request."""
Piece = TokensGenerated
"""New output of one sequence, which `index` tells from the order's others; concatenated, its pieces are its answer."""


@attrs.frozen
class Reading:
    """How the answers to one prompt are read; `prompt_tail`, the end of the prompt's text, may have begun the reasoning, which may be counted by `token_text`."""

    dialect: TokenizedDialect
    tools: tuple[Tool, ...]
    prompt_tail: str
    token_text: Callable[[int], str] | None = None

    @property
    def call_marks(self) -> frozenset[str]:
        """The texts that begin calls."""
        calls, channels = self.dialect.dialect.calls, self.dialect.dialect.channels
        if calls is None:
            return frozenset() if channels is None else frozenset({"to=functions"})
        section = () if calls.section is None else (calls.section.open,)
        return frozenset([*section, *(calls.opens if calls.loose or not section else ())])

    def marks_besides(self, texts: Collection[str]) -> Collection[int]:
        """The tokens that are marks, except those that are one of the texts."""
        marks = self.dialect.control_tokens.items() if texts else ()
        return [token_id for token_id, mark in marks if mark not in texts]

    def parser(self) -> AnswerParser:
        """The parser of one more answer."""
        return self.dialect.parser(
            tools=self.tools,
            prompt_tail=self.prompt_tail,
            id_seed=secrets.token_hex(16),
            token_text=self.token_text,
        )


def choose_reading(facts: DialectFacts, name: str | None) -> Callable[[str], Reading] | None:
    """How answers are read where no tools are offered: in the model's dialect, or in the one of that name.

    Calls are looked for all the same, so that a model that writes one is understood. Takes the prompt's text; None if
    nothing says which dialect it is. Raises `ModelLoadError`.
    """
    dialect = choose_dialect(facts, name)
    tools = (Tool(name=""),)
    return None if dialect is None else lambda prompt: Reading(dialect, tools=tools, prompt_tail=prompt)


class Generation:
    """The growing output for one order; it is read to its end, or cancelled.

    Attributes:
        num_cached_tokens: prompt tokens found in the prefix cache; known from the first piece on.
        prompt_logprobs: one entry per prompt token, the first None, where asked for; known from the first piece on.
        pooled: the vector of the prompt, where asked for; known with the only piece.
        routed: the experts of each sequence's tokens, where asked for; known with its last piece.
    """

    def __init__(
        self,
        request: Request,
        reply: Reply,
        reservation: Reservation,
        meter: Meter,
        reading: Reading | None = None,
        *,
        constraint_name: str = "constraint",
    ) -> None:
        self.request_id = request.request_id
        self.num_sequences = request.sampling.n
        self.prompt_token_ids = request.prompt_token_ids
        self.num_cached_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.pooled: tuple[float, ...] | None = None
        self.routed: dict[int, bytes] = {}
        self._sampling = request.sampling
        self._reply = reply
        self._reservation = reservation
        self._meter = meter
        self._reading = reading
        self._constraint_name = constraint_name

    def parser(self) -> AnswerParser | None:
        """Makes the reader of one more of its answers; None if the text of an answer is all there is."""
        return None if self._reading is None else self._reading.parser()

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """The pieces of all sequences, those of one turn together; ends when every sequence has ended.

        Raises `RequestRefusedError`, `BadValueError`, `EngineDiedError` or `StepFailedError`, and `DeadlineError` where
        the time is over before the first token; a later timeout is a finish reason.
        """
        try:
            async for events in self._reply.events():
                self._meter.note(events)
                self._reservation.start()
                if pieces := self._pieces_of(events):
                    yield pieces
        except (RequestRefusedError, BadValueError) as error:
            self._meter.end("refused")
            if not isinstance(error, BadValueError) or error.parameter != "constraint":
                raise
            raise BadValueError(self._constraint_name, str(error).removeprefix("constraint: ")) from None
        except Exception:
            self._meter.end(FinishReason.ERROR.value)
            raise
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop computing and give the reservation back; may be called at any moment and any number of times."""
        self._meter.end(FinishReason.ABORT.value)
        self._reply.cancel()
        self._reservation.give_back()

    def _pieces_of(self, events: Sequence[EngineEvent]) -> list[Piece]:
        pieces: list[Piece] = []
        for event in events:
            if isinstance(event, TokensGenerated):
                if event.finish_reason is FinishReason.ERROR and not _is_at_fault(event):
                    self._log_failure(event)
                if event.finish_reason is not None:
                    _check_end(event)
                if event.index == 0:
                    self.num_cached_tokens = event.num_cached_tokens
                pieces.append(event)
            elif isinstance(event, PromptPooled):
                self.pooled = event.vector
            elif isinstance(event, SequenceRouted):
                self.routed[event.index] = event.data
            elif isinstance(event, PromptScored) and self.prompt_logprobs is None:
                self.prompt_logprobs = event.logprobs
            elif isinstance(event, SequenceAdmitted) and event.index == 0 and not event.resumed:
                self.num_cached_tokens = event.num_cached_tokens
        return pieces

    def _log_failure(self, piece: Piece) -> None:
        """Clients read nothing of a failure's cause, so the log has it, with the settings that may have to do with it."""
        facts, sampling = CURRENT.get(), self._sampling
        numbers = {name: getattr(sampling, name) for name, each in PARAMETERS.items() if each.kind in _LOGGED}
        structlog.get_logger().error(
            "a request failed",
            request_id=facts and facts.request_id,
            engine_id=self.request_id,
            error=piece.error,
            num_generated=piece.num_generated,
            sampling={name: each for name, each in numbers.items() if each != PARAMETERS[name].default},
        )


def _is_at_fault(piece: Piece) -> bool:
    """True if the answer ends because no text can meet its constraint; the cause may quote it, and is no failure."""
    return (piece.error or "").startswith(AT_FAULT)


def _check_end(piece: Piece) -> None:
    check_fault(piece.error)
    if piece.finish_reason is FinishReason.ERROR:
        raise StepFailedError(piece.error or "the step failed")
    # A request's first sequence is the first to start: if it has nothing, no other has.
    if piece.finish_reason is FinishReason.TIMEOUT and piece.index == 0 and piece.num_generated == 0:
        raise DeadlineError("the time for this request was over before its first token; try again later")


@attrs.define(eq=False)
class Reservation:
    """One accepted request: it waits until the engine has started it, and lives until it is released.

    Attributes:
        num_sequences: how many device rows it will want.
        num_tokens: its prompt's length, estimated until it is tokenized.
        num_bytes: its constraint's length.
    """

    num_sequences: int
    num_tokens: int
    _reservations: Reservations
    num_bytes: int = 0
    _waits: bool = True
    _lives: bool = True

    def count_tokens(self, num_tokens: int) -> None:
        """The prompt is tokenized."""
        if self._waits:
            self._reservations.change(waiting_tokens=num_tokens - self.num_tokens)
        self.num_tokens = num_tokens

    def count_bytes(self, num_bytes: int) -> None:
        """The constraint is known. Raises `OverloadedError` if too much of others' waits."""
        if self._waits:
            self._reservations.add_bytes(num_bytes)
            self.num_bytes += num_bytes

    def start(self) -> None:
        """The engine has begun; idempotent."""
        if self._waits:
            self._waits = False
            running = self.num_sequences if self._lives else 0
            self._reservations.change(
                waiting=-1,
                waiting_tokens=-self.num_tokens,
                waiting_bytes=-self.num_bytes,
                running_sequences=running,
            )

    def give_back(self) -> None:
        """The request has ended, or was never sent; idempotent."""
        if self._lives:
            self._lives = False
            self._reservations.change(living=-1, running_sequences=0 if self._waits else -self.num_sequences)
            self.start()


class Reservations:
    """Counts the living requests and refuses those beyond the bounds.

    The engine takes as many sequences as it has free rows without a wait, so those are let in beside the queue.

    Args:
        counts: of `RESERVATION_NAMES`; shared by all processes that hand requests to one engine.
    """

    def __init__(self, settings: ServiceSettings, counts: Counts | None = None) -> None:
        self._settings = settings
        self.counts = counts or Counts()

    @property
    def living(self) -> int:
        """Accepted requests that have not ended."""
        return self.counts["living"]

    def begin_drain(self) -> None:
        """Take nothing more, in any process."""
        self.change(draining=1)

    def change(self, **changes: int) -> None:
        """Change several counts at once."""
        with self.counts.lock:
            for name, number in changes.items():
                self.counts.add(name, number)

    def add_bytes(self, number: int) -> None:
        """More of a constraint waits, or raise `OverloadedError`."""
        with self.counts.lock:
            waiting = self.counts["waiting_bytes"]
            if waiting and waiting + number > self._settings.max_waiting_bytes:
                message = f"too many constraints: {waiting} characters of them waiting and {number} more"
                raise OverloadedError(f"{message}; try again later")
            self.counts.add("waiting_bytes", number)

    def take(
        self, wanted: Sequence[tuple[int, int]], *, rows: int, deferred: bool = False
    ) -> list[Reservation]:
        """Reservations for requests that are wanted together, as (sequences, prompt tokens) each: all of them, or none.

        `rows` is how many sequences the engine runs at once. Deferred requests stand in nobody's way, so they count as living only;
        the engine bounds how many wait. Raises `DrainingError`, `OverloadedError`, or `BadValueError` for more requests at once
        than could ever be let in.
        """
        requests, all_tokens = len(wanted), sum(tokens for _, tokens in wanted)
        with self.counts.lock:
            if self.counts["draining"]:
                raise DrainingError("the server is shutting down and takes no more requests", retry_after=5)
            self.check_count(requests, rows=rows)
            self._check_sequences(sum(sequences for sequences, _ in wanted), rows)
            if not deferred:
                self._check_room(requests, all_tokens, rows)
                self.counts.add("waiting", requests)
                self.counts.add("waiting_tokens", all_tokens)
            self.counts.add("living", requests)
        return [
            Reservation(0 if deferred else sequences, tokens, self, waits=not deferred)
            for sequences, tokens in wanted
        ]

    def check_count(self, requests: int, *, rows: int) -> None:
        """Raise `BadValueError` for more requests at once than could ever be let in."""
        most = self._settings.max_waiting_requests + rows
        if requests > most:
            raise BadValueError("prompt", f"holds {requests} texts and this server takes at most {most}")

    def _check_sequences(self, sequences: int, rows: int) -> None:
        """The most sequences of one request: as many as may wait, or the most of one prompt."""
        most = max(MAX_SEQUENCES_PER_REQUEST, self._settings.max_waiting_requests + rows)
        if sequences > most:
            message = f"makes {sequences} answers with all prompts; this server gives at most {most}"
            raise BadValueError("n", message)

    @contextlib.contextmanager
    def tokenizing(self) -> Iterator[None]:
        """Tokenizing for its own sake, bounded like the queue; raises `OverloadedError`."""
        with self.counts.lock:
            now = self.counts["tokenizing_now"]
            if now >= max(1, self._settings.max_waiting_requests):
                raise OverloadedError(f"too many texts: {now} being tokenized; try again later")
            self.counts.add("tokenizing_now")
        try:
            yield
        finally:
            self.counts.add("tokenizing_now", -1)

    def _check_room(self, requests: int, tokens: int, rows: int) -> None:
        free_rows = max(0, rows - self.counts["running_sequences"])
        most = self._settings.max_waiting_requests + free_rows
        waiting, waiting_tokens = self.counts["waiting"], self.counts["waiting_tokens"]
        if waiting + requests > most:
            raise OverloadedError(f"too many requests: {waiting} waiting already; try again later")
        if waiting and waiting_tokens + tokens > self._settings.max_waiting_tokens:
            message = f"too many prompt tokens: {waiting_tokens} waiting and {tokens} more"
            raise OverloadedError(f"{message}; try again later")
