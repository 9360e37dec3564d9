"""One choice of a completion: what each piece of the engine's answer adds to it, and the whole as the sum of those.

The unstreamed answer is made from the same additions that a stream sends, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.protocols.openai.answers import (
    CompletionChoice,
    CompletionLogprobs,
    PromptPosition,
)
from nanoserve.entrypoints.server.protocols.openai.endings import finish_name, stop_reason, timings
from nanoserve.entrypoints.server.protocols.openai.logprobs import legacy_logprobs, prompt_positions
from nanoserve.entrypoints.server.protocols.openai.parameters import CompletionWishes
from nanoserve.ports.request import FinishReason


@attrs.frozen
class Echo:
    """A prompt as its answers repeat it."""

    text: str
    logprobs: CompletionLogprobs | None


class CompletionPrompt:
    """One prompt of a request and its generation; `text` is None where the prompt came as ids, or was cut."""

    def __init__(
        self, service: TextService, wishes: CompletionWishes, generation: Generation, text: str | None
    ) -> None:
        self.service = service
        self.wishes = wishes
        self.generation = generation
        self._text = text
        self._echo: Echo | None = None

    async def echo(self) -> Echo:
        """The prompt's text and its tokens' log-probabilities; known from the first piece on."""
        if self._echo is None:
            text = self._text
            if text is None:
                skip = self.wishes.sampling.skip_special_tokens
                ids = self.generation.prompt_token_ids
                text = await self.service.decode(ids, skip_special_tokens=skip)
            self._echo = Echo(text, await self._logprobs(len(text)))
        return self._echo

    def positions(self) -> list[PromptPosition] | UnsetType:
        """The prompt's log-probabilities in their own field."""
        count, scores = self.wishes.prompt_logprobs, self.generation.prompt_logprobs
        if count is None or scores is None:
            return UNSET
        return prompt_positions(scores, count, self.service.token_text)

    async def _logprobs(self, length: int) -> CompletionLogprobs | None:
        count, scores = self.wishes.logprobs, self.generation.prompt_logprobs
        if count is None or scores is None:
            return None
        ids = self.generation.prompt_token_ids
        skip = self.wishes.sampling.skip_special_tokens
        offsets = await self.service.offsets(skip_special_tokens=skip).place(ids)
        clipped = [min(each, length) for each in offsets]
        return legacy_logprobs(ids, scores, clipped, count, self.service.token_text)


class CompletionWriter:
    """Turns the pieces of one sequence into additions to its choice."""

    def __init__(self, prompt: CompletionPrompt, index: int) -> None:
        self._prompt = prompt
        self._wishes = prompt.wishes
        self._index = index
        self._is_first = True
        self._start = 0
        self._offsets = prompt.service.offsets(
            prompt.generation.prompt_token_ids, skip_special_tokens=self._wishes.sampling.skip_special_tokens
        )

    async def add(self, piece: Piece) -> CompletionChoice:
        """What this piece adds; the first one brings the prompt where it is to be repeated."""
        echo = None
        if self._is_first and self._wishes.echo:
            echo = await self._prompt.echo()
            self._start = len(echo.text)
        choice = CompletionChoice(
            index=self._index,
            text=piece.text,
            logprobs=await self._logprobs(piece),
            finish_reason=finish_name(piece),
            stop_reason=stop_reason(piece),
            token_ids=list(piece.token_ids) if self._wishes.return_token_ids else UNSET,
            timings=timings(piece) if self._wishes.return_timings else UNSET,
        )
        if echo is not None:
            choice.text = echo.text + choice.text
            choice.logprobs = _joined_logprobs([echo.logprobs, choice.logprobs])
        if self._is_first:
            self._is_first = False
            choice.prompt_logprobs = self._prompt.positions()
            if self._wishes.return_token_ids:
                choice.prompt_token_ids = list(self._prompt.generation.prompt_token_ids)
        return choice

    async def _logprobs(self, piece: Piece) -> CompletionLogprobs | None:
        if self._wishes.logprobs is None:
            return None
        offsets = [self._start + each for each in await self._offsets.place(piece.token_ids)]
        text = self._prompt.service.token_text
        return legacy_logprobs(piece.token_ids, piece.logprobs, offsets, self._wishes.logprobs, text)


def without_output(piece: Piece) -> Piece:
    """The end of an answer of no tokens: its only token, and why that one ended, are nobody's business."""
    reason = piece.finish_reason
    if reason in {FinishReason.STOP, FinishReason.LENGTH}:
        reason = FinishReason.LENGTH
    return attrs.evolve(
        piece, token_ids=(), text="", logprobs=(), finish_reason=reason, stop=None, num_generated=0
    )


def joined_choice(additions: Sequence[CompletionChoice]) -> CompletionChoice:
    """The whole choice."""
    first, last = additions[0], additions[-1]
    return CompletionChoice(
        index=first.index,
        text="".join(each.text for each in additions),
        logprobs=_joined_logprobs([each.logprobs for each in additions]),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        prompt_logprobs=first.prompt_logprobs,
        prompt_token_ids=first.prompt_token_ids,
        token_ids=joined_ids([each.token_ids for each in additions]),
        timings=last.timings,
    )


def joined_ids(parts: Sequence[list[int] | UnsetType]) -> list[int] | UnsetType:
    """All ids in order; unset where they were not asked for."""
    known = [each for each in parts if each is not UNSET]
    return [token for each in known for token in each] if known else UNSET


def _joined_logprobs(parts: Sequence[CompletionLogprobs | None]) -> CompletionLogprobs | None:
    known = [each for each in parts if each is not None]
    whole = CompletionLogprobs()
    for each in known:
        whole.text_offset += each.text_offset
        whole.token_logprobs += each.token_logprobs
        whole.tokens += each.tokens
        whole.top_logprobs += each.top_logprobs
    return whole if known else None
