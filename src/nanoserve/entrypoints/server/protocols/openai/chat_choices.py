"""One choice of a chat answer: what each piece of the engine's answer adds to it, and the whole as the sum of those."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.server.protocols.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from nanoserve.entrypoints.server.protocols.openai.completion_choices import joined_ids
from nanoserve.entrypoints.server.protocols.openai.endings import finish_name, stop_reason, timings
from nanoserve.entrypoints.server.protocols.openai.logprobs import TokenText, chat_logprobs


class ChatWriter:
    """Turns the pieces of one sequence into additions to its choice; `logprobs` None reports none."""

    def __init__(
        self,
        index: int,
        *,
        logprobs: int | None,
        return_token_ids: bool,
        return_timings: bool,
        token_text: TokenText,
    ) -> None:
        self._index = index
        self._logprobs = logprobs
        self._return_token_ids = return_token_ids
        self._return_timings = return_timings
        self._token_text = token_text
        self._is_first = True

    def add(self, piece: Piece) -> ChatChunkChoice:
        """What this piece adds; the first one says whose turn it is."""
        delta = ChatDelta(content=piece.text) if piece.text or self._is_first else ChatDelta()
        if self._is_first:
            delta.role = "assistant"
            self._is_first = False
        scores = None
        if self._logprobs is not None:
            scores = chat_logprobs(piece.logprobs, self._logprobs, self._token_text)
        return ChatChunkChoice(
            index=self._index,
            delta=delta,
            logprobs=scores,
            finish_reason=finish_name(piece),
            stop_reason=stop_reason(piece),
            token_ids=list(piece.token_ids) if self._return_token_ids else UNSET,
            timings=timings(piece) if self._return_timings else UNSET,
        )


def joined_chat_choice(additions: Sequence[ChatChunkChoice]) -> ChatChoice:
    """The whole choice."""
    first, last = additions[0], additions[-1]
    contents = [each.delta.content for each in additions]
    return ChatChoice(
        index=first.index,
        message=ChatMessage("".join(each for each in contents if each is not UNSET)),
        logprobs=_joined_logprobs([each.logprobs for each in additions]),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        token_ids=joined_ids([each.token_ids for each in additions]),
        timings=last.timings,
    )


def _joined_logprobs(parts: Sequence[ChatLogprobs | None]) -> ChatLogprobs | None:
    known = [each for each in parts if each is not None]
    return ChatLogprobs([position for each in known for position in each.content]) if known else None
