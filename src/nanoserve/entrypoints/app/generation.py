"""One accepted order: its prompt, its reservation, and the pieces of its sequences as the engine makes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import structlog

from nanoserve.domain.text.dialects.tokenized import AnswerParser
from nanoserve.entrypoints.app.measurements import Meter
from nanoserve.entrypoints.app.orders import CURRENT
from nanoserve.entrypoints.app.parts import Reading
from nanoserve.entrypoints.app.reservations import Reservation
from nanoserve.ports.driving import Reply
from nanoserve.ports.errors import BadValueError, DeadlineError, RequestRefusedError, StepFailedError
from nanoserve.ports.events import EngineEvent, PromptScored, SequenceAdmitted, TokensGenerated
from nanoserve.ports.grammar import AT_FAULT
from nanoserve.ports.parameter import Kind
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import PARAMETERS, SamplingParams
from nanoserve.ports.step import TokenLogprobs

_LOGGED: Final = (Kind.NUMBER, Kind.INTEGER, Kind.SWITCH)
Piece = TokensGenerated
"""New output of one sequence, which `index` tells from the order's others; concatenated, its pieces are its answer."""


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
