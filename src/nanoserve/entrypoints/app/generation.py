"""One accepted order: its prompt, its reservation, and the pieces of its sequences as the engine makes them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any, Final

import attrs
import structlog

from nanoserve.domain.text.dialects.parser import AnswerParser
from nanoserve.domain.text.dialects.tokenized import TokenizedDialect, choose_dialect, json_schema_of
from nanoserve.entrypoints.app.admission import Reservation
from nanoserve.entrypoints.app.measurements import Meter
from nanoserve.entrypoints.app.orders import CURRENT, Order
from nanoserve.ports.driven import DialectFacts
from nanoserve.ports.driving import Reply
from nanoserve.ports.errors import BadValueError, DeadlineError, RequestRefusedError, StepFailedError
from nanoserve.ports.events import EngineEvent, PromptScored, SequenceAdmitted, TokensGenerated
from nanoserve.ports.grammar import AT_FAULT, BOUNDED_WHITESPACE, Constraint
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import PARAMETERS, Kind, SamplingParams
from nanoserve.ports.step import TokenLogprobs
from nanoserve.ports.tool_calls import Tool

_LOGGED: Final = (Kind.NUMBER, Kind.INTEGER, Kind.SWITCH)
Piece = TokensGenerated
"""New output of one sequence, which `index` tells from the order's others; concatenated, its pieces are its answer."""


@attrs.frozen
class Reading:
    """How the answers to one prompt are read.

    Attributes:
        tools: those that may be called.
        prompt_tail: the end of the prompt's text, which may have begun the reasoning.
        token_text: the text of a token, where reasoning is counted by text.
    """

    dialect: TokenizedDialect
    tools: tuple[Tool, ...]
    prompt_tail: str
    token_text: Callable[[int], str] | None = None

    def constraint(self, order: Order) -> Constraint | None:
        """The constraint of the whole answer, so that its text and its calls are as ordered.

        Raises `BadValueError` for a format that does not go with calls.
        """
        budget = None if order.budget is None else order.budget.tokens
        schema = None if order.format is None else json_schema_of(order.format.constraint)
        if order.format is not None and schema is None and self.tools:
            raise BadValueError(order.format.name, "goes with tools that may be called only where it is JSON")
        if order.format is None or self.tools:
            return self.dialect.grammar(
                self.tools,
                order.calls,
                schema=schema,
                whitespace=BOUNDED_WHITESPACE if order.format is None else order.format.constraint.whitespace,
                prompt_tail=self.prompt_tail,
                budget=budget,
            )
        return self.dialect.behind_reasoning(
            order.format.constraint, prompt_tail=self.prompt_tail, budget=budget
        )

    def marks_besides(self, texts: Collection[str]) -> Collection[int]:
        """The tokens that are marks, but for those that are one of the texts."""
        marks = self.dialect.control_tokens.items() if texts else ()
        return [token_id for token_id, mark in marks if mark not in texts]

    def parser(self) -> AnswerParser:
        """Of one more answer."""
        return self.dialect.parser(
            tools=self.tools,
            prompt_tail=self.prompt_tail,
            id_seed=secrets.token_hex(16),
            token_text=self.token_text,
        )


def choose_reading(facts: DialectFacts, name: str | None) -> Callable[[str], Reading] | None:
    """How answers are read where no tools are offered: in the model's dialect, or in the one of that name.

    Calls are looked for all the same, so that a model that writes one is understood. Takes the prompt's text; None where
    nothing says which dialect it is. Raises `ModelLoadError`.
    """
    dialect = choose_dialect(facts, name)
    tools = (Tool(name=""),)
    return None if dialect is None else lambda prompt: Reading(dialect, tools=tools, prompt_tail=prompt)


class Generation:
    """The growing output for one order; it is read to its end, or cancelled.

    Attributes:
        request_id: the engine's key.
        num_sequences: how many answers the prompt gets.
        prompt_token_ids: what the engine was given.
        num_cached_tokens: prompt tokens found in the prefix cache; known from the first piece on.
        prompt_logprobs: one entry per prompt token, the first None, where asked for; known from the first piece on.
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
        self._sampling = request.sampling
        self._reply = reply
        self._reservation = reservation
        self._meter = meter
        self._reading = reading
        self._constraint_name = constraint_name

    def parser(self) -> AnswerParser | None:
        """Makes the reader of one more of its answers; None where the text of an answer is all there is."""
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
            elif isinstance(event, PromptScored) and self.prompt_logprobs is None:
                self.prompt_logprobs = event.logprobs
            elif isinstance(event, SequenceAdmitted) and event.index == 0 and not event.resumed:
                self.num_cached_tokens = event.num_cached_tokens
        return pieces

    def _log_failure(self, piece: Piece) -> None:
        """Clients read nothing of a failure's cause, so the log has it, with the settings that may have to do with it."""
        facts = CURRENT.get()
        structlog.get_logger().error(
            "a request failed",
            request_id=facts and facts.request_id,
            engine_id=self.request_id,
            error=piece.error,
            num_generated=piece.num_generated,
            sampling=_numbers_set(self._sampling),
        )


def _numbers_set(sampling: SamplingParams) -> dict[str, Any]:
    """The numbers and switches that are not at their defaults; texts and token ids may be words of a prompt."""
    values = {name: getattr(sampling, name) for name, each in PARAMETERS.items() if each.kind in _LOGGED}
    return {name: value for name, value in values.items() if value != PARAMETERS[name].default}


def _is_at_fault(piece: Piece) -> bool:
    """Whether the answer ends because nothing can be what was asked for; the cause may quote that, and is no failure."""
    return (piece.error or "").startswith(AT_FAULT)


def _check_end(piece: Piece) -> None:
    if _is_at_fault(piece):
        raise BadValueError("constraint", (piece.error or "").removeprefix(AT_FAULT))
    if piece.finish_reason is FinishReason.ERROR:
        raise StepFailedError(piece.error or "the step failed")
    # A request's first sequence is the first to start: if it has nothing, no other has.
    if piece.finish_reason is FinishReason.TIMEOUT and piece.index == 0 and piece.num_generated == 0:
        raise DeadlineError("the time for this request was over before its first token; try again later")
