"""A response while it grows: pieces of a generation go in, wire events come out, without any I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.protocols.responses.answer import (
    ChosenToken,
    Failure,
    IncompleteDetails,
    InputTokensDetails,
    LikelyToken,
    OutputMessage,
    OutputText,
    ResponseObject,
    Status,
    Usage,
)
from nanoserve.entrypoints.server.protocols.responses.events import (
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import TokenLogprobs


class Growth:
    """One response from its first event to its last.

    Args:
        opening: the response before its first token.
        message_id: of its one message.
        token_text: the text of a token, where log-probabilities are wanted; None leaves them out.
    """

    def __init__(
        self, opening: ResponseObject, *, message_id: str, token_text: Callable[[int], str] | None
    ) -> None:
        self.response = opening
        self._message_id = message_id
        self._token_text = token_text
        self._texts: list[str] = []
        self._logprobs: list[ChosenToken] = []
        self._num_generated = 0
        self._numbered = 0

    @property
    def ended(self) -> bool:
        """Whether the last event is out."""
        return self.response.status not in {"queued", "in_progress"}

    def begin(self) -> list[Event]:
        """The events before the first text."""
        message = OutputMessage(id=self._message_id, status="in_progress", content=[])
        self._become("in_progress")
        return self._number(
            [
                ResponseCreated(response=self.response),
                ResponseInProgress(response=self.response),
                OutputItemAdded(item=message),
                ContentPartAdded(item_id=self._message_id, part=OutputText()),
            ]
        )

    def take(self, piece: Piece) -> list[Event]:
        """Note a piece; at most one delta."""
        logprobs = self._chosen(piece.logprobs)
        self._texts.append(piece.text)
        self._logprobs += logprobs
        self._num_generated = piece.num_generated
        if not piece.text and not logprobs:
            return []
        delta = OutputTextDelta(item_id=self._message_id, delta=piece.text, logprobs=logprobs)
        return self._number([delta])

    def end(self, reason: FinishReason, *, prompt_tokens: int, cached_tokens: int) -> list[Event]:
        """The last events; afterwards `response` is whole."""
        cut = reason is FinishReason.LENGTH
        whole = reason is FinishReason.STOP
        text = OutputText(text="".join(self._texts), logprobs=self._logprobs)
        message = OutputMessage(
            id=self._message_id, status="completed" if whole else "incomplete", content=[text]
        )
        self._become(
            _STATUS[reason],
            output=[message],
            usage=self._usage(prompt_tokens, cached_tokens),
            incomplete_details=IncompleteDetails() if cut else None,
            completed_at=int(time.time()) if whole else None,
            error=_LATE if reason is FinishReason.TIMEOUT else None,
        )
        last = _LAST_EVENT.get(reason, ResponseFailed)
        return self._number(
            [
                OutputTextDone(item_id=self._message_id, text=text.text, logprobs=text.logprobs),
                ContentPartDone(item_id=self._message_id, part=text),
                OutputItemDone(item=message),
                last(response=self.response),
            ]
        )

    def fail(self, failure: Failure) -> list[Event]:
        """The last event of a response that cannot be finished; `begin`'s first two where they are missing."""
        opening: list[Event] = []
        if not self._numbered:
            opening = self.begin()[:2]
            self._numbered = len(opening)
        self._become("failed", error=failure)
        return opening + self._number([ResponseFailed(response=self.response)])

    def _become(self, status: Status, **changes: object) -> None:
        self.response = msgspec.structs.replace(self.response, status=status, **changes)

    def _usage(self, prompt_tokens: int, cached_tokens: int) -> Usage:
        return Usage(
            input_tokens=prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens),
            output_tokens=self._num_generated,
            total_tokens=prompt_tokens + self._num_generated,
        )

    def _number(self, events: list[Event]) -> list[Event]:
        for event in events:
            event.sequence_number = self._numbered
            self._numbered += 1
        return events

    def _chosen(self, positions: Iterable[TokenLogprobs]) -> list[ChosenToken]:
        text_of = self._token_text
        return [] if text_of is None else [_chosen_token(each, text_of) for each in positions]


_STATUS: dict[FinishReason, Status] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.ABORT: "cancelled",
    FinishReason.TIMEOUT: "failed",
    FinishReason.ERROR: "failed",
}
_LAST_EVENT: dict[FinishReason, type[ResponseCompleted | ResponseIncomplete]] = {
    FinishReason.STOP: ResponseCompleted,
    FinishReason.LENGTH: ResponseIncomplete,
}
_LATE = Failure(code="server_error", message="the request ran out of its time; part of the answer is here")


def _chosen_token(position: TokenLogprobs, text_of: Callable[[int], str]) -> ChosenToken:
    token = text_of(position.token_id)
    return ChosenToken(
        token=token,
        bytes=list(token.encode()),
        logprob=position.logprob,
        top_logprobs=[_likely_token(text_of(each), logprob) for each, logprob in position.top],
    )


def _likely_token(token: str, logprob: float) -> LikelyToken:
    return LikelyToken(token, list(token.encode()), logprob)
