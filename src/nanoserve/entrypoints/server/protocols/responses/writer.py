"""A response as a stream of numbered events, and whole."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.http.errors import classify
from nanoserve.entrypoints.server.http.logprobs import ChosenToken, TokenText, chosen_tokens
from nanoserve.entrypoints.server.http.sse import EVENTS, PING, typed_frame
from nanoserve.entrypoints.server.protocols.responses import answer as wire
from nanoserve.entrypoints.server.protocols.responses.reading import new_message_id
from nanoserve.ports.request import FinishReason

_STATUS: dict[FinishReason, wire.Status] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.TIMEOUT: "failed",
    FinishReason.ERROR: "failed",
}
_LATE = wire.Failure(
    code="server_error", message="the request ran out of its time; part of the answer is here"
)


class ResponseWriter:
    """Writes one response (`Writer`).

    Args:
        opening: the response before its first token; `response` is how it stands.
        num_logprobs: alternatives for each token; None reports no log-probabilities.
        on_end: is given the whole response before its last event is out.
    """

    keeps_pieces = True
    media_type = EVENTS
    ping = PING

    def __init__(
        self,
        opening: wire.ResponseObject,
        *,
        num_logprobs: int | None,
        token_text: TokenText,
        on_end: Callable[[wire.ResponseObject], None],
    ) -> None:
        self.response = opening
        self._message_id = new_message_id()
        self._place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._num_logprobs = num_logprobs
        self._token_text = token_text
        self._on_end = on_end
        self._numbered = 0

    def begin(self, _answer: Answer) -> bytes:
        """The events before the first text."""
        message = wire.OutputMessage(id=self._message_id, status="in_progress", content=[])
        return (
            self._created()
            + self._event("output_item.added", output_index=0, item=message)
            + self._event("content_part.added", **self._place, part=wire.OutputText())
        )

    async def add(self, _answer: Answer, _choice: Choice, piece: Piece) -> bytes:
        """At most one delta."""
        logprobs = self._logprobs(piece)
        if not piece.text and not logprobs:
            return b""
        return self._event("output_text.delta", **self._place, delta=piece.text, logprobs=logprobs)

    def end(self, answer: Answer) -> bytes:
        """The last events, which repeat all of the text."""
        response = self.finish(answer)
        (message,) = response.output
        (text,) = message.content
        is_ended = response.status in {"completed", "incomplete"}
        return (
            self._event("output_text.done", **self._place, text=text.text, logprobs=text.logprobs)
            + self._event("content_part.done", **self._place, part=text)
            + self._event("output_item.done", output_index=0, item=message)
            + self._event(response.status if is_ended else "failed", response=response)
        )

    def fail(self, error: Exception) -> bytes:
        """The last event of a response that cannot be finished; the first two where they are missing."""
        opening = b"" if self._numbered else self._created()
        return opening + self._event("failed", response=self.failed(error))

    async def whole(self, answer: Answer) -> wire.ResponseObject:
        """The response, ended."""
        return self.finish(answer)

    def become(self, status: wire.Status, **changes: object) -> wire.ResponseObject:
        """The response in its next state."""
        self.response = msgspec.structs.replace(self.response, status=status, **changes)
        return self.response

    def failed(self, error: Exception) -> wire.ResponseObject:
        """The response, which cannot be finished."""
        problem = classify(error)
        if problem.status >= 500:
            failure = wire.Failure(code="server_error", message=problem.message)
        elif problem.status == 429:
            failure = wire.Failure(code="rate_limit_exceeded", message=problem.message)
        else:
            failure = wire.Failure(code="invalid_prompt", message=problem.message)
        return self.become("failed", error=failure)

    def finish(self, answer: Answer) -> wire.ResponseObject:
        """The response with all of its text; one that has not ended is cancelled."""
        (choice,) = answer.choices
        text, reason = wire.OutputText(), _reason(answer)
        if choice.last is not None:
            piece = choice.joined()
            text = wire.OutputText(text=piece.text, logprobs=self._logprobs(piece))
        is_whole = reason is FinishReason.STOP
        message = wire.OutputMessage(
            id=self._message_id, status="completed" if is_whole else "incomplete", content=[text]
        )
        response = self.become(
            _STATUS[reason],
            output=[message],
            usage=_usage(answer),
            incomplete_details=wire.IncompleteDetails() if reason is FinishReason.LENGTH else None,
            completed_at=int(time.time()) if is_whole else None,
            error=_LATE if reason is FinishReason.TIMEOUT else None,
        )
        self._on_end(response)
        return response

    def _created(self) -> bytes:
        response = self.become("in_progress")
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def _event(self, kind: str, **fields: object) -> bytes:
        number = self._numbered
        self._numbered += 1
        return typed_frame(f"response.{kind}", sequence_number=number, **fields)

    def _logprobs(self, piece: Piece) -> list[ChosenToken]:
        count = self._num_logprobs
        return [] if count is None else chosen_tokens(piece.logprobs, count, self._token_text, partial=[])


def _reason(answer: Answer) -> FinishReason:
    last = answer.choices[0].last
    return (last and last.finish_reason) or FinishReason.ABORT


def _usage(answer: Answer) -> wire.Usage:
    prompt, generated = answer.num_prompt_tokens, answer.num_generated_tokens
    return wire.Usage(
        input_tokens=prompt,
        input_tokens_details=wire.InputTokensDetails(answer.num_cached_tokens),
        output_tokens=generated,
        total_tokens=prompt + generated,
    )
