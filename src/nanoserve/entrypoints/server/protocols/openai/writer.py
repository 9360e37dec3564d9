"""What the answers of OpenAI's two endpoints have in common: names, usage, endings, and chunks of text alone."""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.logprobs import TokenText, finite
from nanoserve.entrypoints.server.http.sse import EVENTS, PING, TextFrames, data_frame, error_frame
from nanoserve.entrypoints.server.protocols.openai.answers import (
    CompletionTokensDetails,
    PromptPosition,
    PromptTokensDetails,
    ScoredToken,
    Timings,
    Usage,
)
from nanoserve.entrypoints.server.protocols.openai.schemas import GenerationBody, StreamOptions
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import TokenLogprobs

_DONE = b"data: [DONE]\n\n"


class ChunkWriter(abc.ABC):
    """Writes an answer as a stream of chunks or whole (`Writer`).

    Its name is the client's `request_id`, or one of its own. Where `num_logprobs` or
    `num_prompt_logprobs` is None, no log-probabilities are reported of the answer, or of the prompt.
    """

    keeps_pieces = False
    media_type = EVENTS
    ping = PING
    _chunk_type: ClassVar[type[msgspec.Struct]]

    def __init__(
        self,
        body: GenerationBody,
        service: TextService,
        prefix: str,
        *,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None,
    ) -> None:
        options = body.stream_options or StreamOptions()
        self._head: dict[str, Any] = {
            "id": f"{prefix}-{body.request_id or uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.check_model(body.model),
        }
        self._num_logprobs = num_logprobs
        self._token_text = service.tokenizing.token_text
        self._num_prompt_logprobs = num_prompt_logprobs
        self._return_token_ids = bool(body.return_token_ids)
        self._return_timings = bool(body.return_timings)
        self._ends_with_usage = bool(options.include_usage)
        self._counts_always = bool(options.continuous_usage_stats)
        self._text_is_all = num_logprobs is None and not self._return_token_ids and not self._counts_always
        self._text_frames = TextFrames(
            lambda index, text: data_frame(self._chunk([self._text_choice(index, text)]))
        )

    @abc.abstractmethod
    def _text_choice(self, index: int, text: str) -> msgspec.Struct:
        """What adds text to a choice and nothing else."""

    @abc.abstractmethod
    async def _piece_chunk(self, answer: Answer, choice: Choice, piece: Piece) -> Any:
        """The chunk of any piece."""

    @abc.abstractmethod
    async def whole(self, answer: Answer) -> Any:
        """The answer in one, once every choice has ended."""

    def begin(self, _answer: Answer) -> bytes:
        """Nothing: the first token's chunk says it all."""
        return b""

    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """One chunk for each piece, so that clients can count them."""
        if self._text_is_all and choice.is_shown and piece.text and piece.finish_reason is None:
            return self._text_frames.of(choice.index, piece.text)
        return await self._piece_frame(answer, choice, piece)

    async def _piece_frame(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        chunk = await self._piece_chunk(answer, choice, piece)
        if self._counts_always:
            chunk.usage = self._usage(answer)
        return data_frame(chunk)

    def end(self, answer: Answer) -> bytes:
        """The usage, where asked for, and the last line."""
        if not self._ends_with_usage:
            return _DONE
        chunk = self._chunk([])
        chunk.usage = self._usage(answer)
        return data_frame(chunk) + _DONE

    def fail(self, error: Exception) -> bytes:
        """The error and the last line."""
        return error_frame(error) + _DONE

    def _chunk(self, choices: list[Any]) -> Any:
        return self._chunk_type(choices=choices, **self._head)

    def _usage(self, answer: Answer) -> Usage:
        prompt, generated = answer.num_prompt_tokens, answer.num_generated_tokens
        details = PromptTokensDetails(answer.num_cached_tokens)
        usage = Usage(prompt, generated, prompt + generated, details)
        if (reasoning := answer.num_reasoning_tokens) is not None:
            usage.completion_tokens_details = CompletionTokensDetails(reasoning)
        return usage

    def _fields(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """What choices of every kind say of a piece.

        An answer that was cut by its deadline, or because the server had to leave, is shorter than it could have been:
        `length`, with the cause in `stop_reason`.
        """
        reason, stop = piece.finish_reason, piece.stop
        if stop is None and reason in {FinishReason.TIMEOUT, FinishReason.ABORT}:
            stop = reason.value
        return {
            "index": choice.index,
            "finish_reason": reason and ("stop" if reason is FinishReason.STOP else "length"),
            "stop_reason": UNSET if stop is None else stop,
            "token_ids": list(piece.token_ids) if self._return_token_ids else UNSET,
            "timings": _timings(piece) if self._return_timings else UNSET,
        }

    def _prompt_fields(
        self, generation: Generation
    ) -> tuple[list[PromptPosition] | UnsetType, list[int] | UnsetType]:
        """What is said once of a prompt: its log-probabilities and its ids, where asked for."""
        count, scores = self._num_prompt_logprobs, generation.prompt_logprobs
        return (
            UNSET if count is None or scores is None else _positions(scores, count, self._token_text),
            list(generation.prompt_token_ids) if self._return_token_ids else UNSET,
        )


def _timings(piece: Piece) -> Timings | UnsetType:
    """Where the time of an answer went; unset on all pieces but the last."""
    times = piece.times
    if times is None:
        return UNSET
    return Timings(
        queue=_between(times.arrived, times.first_scheduled),
        prefill=_between(times.first_scheduled, times.first_token),
        decode=_between(times.first_token, times.finished),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(end - start, 0.0), 6)


def _positions(scores: Sequence[TokenLogprobs | None], count: int, text: TokenText) -> list[PromptPosition]:
    """One entry per token of the prompt: the actual token and the `count` likeliest, by id."""
    return [None if each is None else _position(each, count, text) for each in scores]


def _position(score: TokenLogprobs, count: int, text: TokenText) -> dict[str, ScoredToken]:
    found = {str(score.token_id): ScoredToken(finite(score.logprob), score.rank, text(score.token_id))}
    for place, (token, logprob) in enumerate(score.top[:count], start=1):
        found.setdefault(str(token), ScoredToken(finite(logprob), place, text(token)))
    return found
