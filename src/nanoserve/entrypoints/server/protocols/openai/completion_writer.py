"""The answer of `/v1/completions`, with the prompt before it where that is to be repeated."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.app.tokenizing import TokenOffsets
from nanoserve.entrypoints.server.protocols.openai.answers import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptTokensDetails,
    Usage,
)
from nanoserve.entrypoints.server.protocols.openai.logprobs import legacy_logprobs
from nanoserve.entrypoints.server.protocols.openai.parameters import CompletionWishes
from nanoserve.entrypoints.server.protocols.openai.schemas import CompletionBody
from nanoserve.entrypoints.server.protocols.openai.writer import ChunkWriter
from nanoserve.ports.request import FinishReason


@attrs.frozen
class Echo:
    """A prompt as its answers repeat it."""

    text: str
    logprobs: CompletionLogprobs | None


class CompletionWriter(ChunkWriter[Completion, Completion]):
    """Writes texts that continue prompts; `texts` are those prompts, None where one came as ids or was cut."""

    def __init__(
        self,
        body: CompletionBody,
        service: TextService,
        wishes: CompletionWishes,
        texts: Sequence[str | None],
    ) -> None:
        super().__init__(
            body,
            service,
            "cmpl",
            num_logprobs=wishes.logprobs,
            num_prompt_logprobs=wishes.prompt_logprobs,
        )
        self._service = service
        self._wishes = wishes
        self._skip = wishes.sampling.skip_special_tokens
        self._texts = texts
        self._echoes: dict[int, Echo] = {}
        self._offsets: dict[int, TokenOffsets] = {}

    def chunk(self, choices: list[CompletionChoice]) -> Completion:
        """As in `ChunkWriter`."""
        return Completion(choices=choices, **self.head)

    def text_chunk(self, index: int, text: str) -> Completion:
        """As in `ChunkWriter`."""
        return self.chunk([CompletionChoice(index=index, text=text)])

    async def piece_chunk(self, _answer: Answer, choice: Choice, piece: Piece) -> Completion:
        """As in `ChunkWriter`."""
        return self.chunk([await self._choice(choice, piece)])

    async def whole(self, answer: Answer) -> Completion:
        """As in `ChunkWriter`."""
        whole = self.chunk([await self._choice(each, each.joined()) for each in answer.choices])
        whole.usage = self.usage(answer)
        return whole

    def usage(self, answer: Answer) -> Usage:
        """A token that was generated only because an engine cannot generate none does not count."""
        if not self._wishes.drops_output:
            return super().usage(answer)
        prompt = answer.num_prompt_tokens
        return Usage(prompt, 0, prompt, PromptTokensDetails(answer.num_cached_tokens))

    async def _choice(self, choice: Choice, piece: Piece) -> CompletionChoice:
        """The first one brings the prompt where it is to be repeated."""
        if self._wishes.drops_output:
            piece = _without_output(piece)
        echo = await self._echo(choice) if self._wishes.echo else Echo("", None)
        logprobs = await self._logprobs(choice, piece, start=len(echo.text))
        written = CompletionChoice(text=piece.text, logprobs=logprobs, **self.fields(choice, piece))
        if not choice.is_shown:
            written.text = echo.text + piece.text
            written.logprobs = _joined(echo.logprobs, logprobs)
            written.prompt_logprobs, written.prompt_token_ids = self.prompt_fields(choice.generation)
        return written

    async def _logprobs(self, choice: Choice, piece: Piece, start: int) -> CompletionLogprobs | None:
        if self.num_logprobs is None:
            return None
        if choice.index not in self._offsets:
            prompt = choice.generation.prompt_token_ids
            self._offsets[choice.index] = self._service.tokenizing.offsets(
                prompt, skip_special_tokens=self._skip
            )
        placed = await self._offsets[choice.index].place(piece.token_ids)
        offsets = [start + each for each in placed]
        return legacy_logprobs(piece.token_ids, piece.logprobs, offsets, self.num_logprobs, self.token_text)

    async def _echo(self, choice: Choice) -> Echo:
        """The prompt's text and its tokens' log-probabilities."""
        generation = choice.generation
        number = choice.index // generation.num_sequences
        if number not in self._echoes:
            ids, scores, logprobs = generation.prompt_token_ids, generation.prompt_logprobs, None
            text = self._texts[number]
            if text is None:
                text = await self._service.decode(ids, skip_special_tokens=self._skip)
            if self.num_logprobs is not None and scores is not None:
                placed = await self._service.tokenizing.offsets(skip_special_tokens=self._skip).place(ids)
                offsets = [min(each, len(text)) for each in placed]
                logprobs = legacy_logprobs(ids, scores, offsets, self.num_logprobs, self.token_text)
            self._echoes[number] = Echo(text, logprobs)
        return self._echoes[number]


def _without_output(piece: Piece) -> Piece:
    """The end of an answer of no tokens: its only token, and why that one ended, are not shown."""
    reason = piece.finish_reason
    if reason in {FinishReason.STOP, FinishReason.LENGTH}:
        reason = FinishReason.LENGTH
    return attrs.evolve(piece, token_ids=(), text="", logprobs=(), finish_reason=reason, stop=None)


def _joined(first: CompletionLogprobs | None, second: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if first is None or second is None:
        return second
    return CompletionLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )
