"""What OpenAI's two endpoints have in common: what bodies are checked for, and of answers names, usage, endings and chunks of text."""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Generation, Piece
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.fields import given_sampling
from nanoserve.entrypoints.server.http.logprobs import TokenText, finite
from nanoserve.entrypoints.server.http.sse import EVENTS, PING, data_frame, error_frame
from nanoserve.entrypoints.server.protocols.openai.answers import (
    CompletionTokensDetails,
    PromptPosition,
    PromptTokensDetails,
    ScoredToken,
    Timings,
    Usage,
)
from nanoserve.entrypoints.server.protocols.openai.schemas import GenerationBody, StreamOptions
from nanoserve.ports.checks import check_number
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import SequenceTimes
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import Api
from nanoserve.ports.step import TokenLogprobs

_DONE = b"data: [DONE]\n\n"
_STRONGEST_BIAS: Final = 100.0
_LONGEST_NAME: Final = 256


def check_body(body: GenerationBody) -> dict[str, Any]:
    """What the endpoints check alike, beside what `SamplingParams` does; returns the sampling values that are given."""
    given = {name: value for name, (_, value) in given_sampling(body, Api.OPENAI).items()}
    n = given.get("n", 1)
    if body.best_of is not None and body.best_of != n:
        raise BadValueError("best_of", f"can only be equal to n ({n}), got {body.best_of}")
    for bias in given.get("logit_bias", {}).values():
        check_number("logit_bias", bias, -_STRONGEST_BIAS, _STRONGEST_BIAS)
    name = body.request_id or ""
    if len(name) > _LONGEST_NAME:
        raise BadValueError("request_id", f"may have {_LONGEST_NAME} characters, got {len(name)}")
    if not (name.isascii() and name.isprintable()):
        raise BadValueError("request_id", "takes printable ASCII characters only")
    if body.stream_options is not None and not body.stream:
        raise BadValueError("stream_options", "needs `stream: true`")
    return given


class ChunkWriter(abc.ABC):
    """Writes an answer as a stream of chunks or whole (`Writer`).

    Its name is the client's `request_id`, or one of its own. Log-probabilities are reported with `num_logprobs` alternatives of
    the answer, and with `num_scored` of the prompt; None for none.
    """

    keeps_pieces = False
    media_type = EVENTS
    ping = PING

    _prefix: ClassVar[str]
    _kind: ClassVar[str]

    def __init__(
        self, body: GenerationBody, service: TextService, num_logprobs: int | None, num_scored: int | None
    ) -> None:
        options = body.stream_options or StreamOptions()
        self._head: dict[str, Any] = {
            "id": f"{self._prefix}-{body.request_id or uuid.uuid4().hex}",
            "object": self._kind,
            "created": int(time.time()),
            "model": service.check_model(body.model),
        }
        self._num_logprobs = num_logprobs
        self._token_text = service.tokenizing.token_text
        self._num_scored = num_scored
        self._return_token_ids = bool(body.return_token_ids)
        self._return_timings = bool(body.return_timings)
        self._ends_with_usage = bool(options.include_usage)
        self._counts_always = bool(options.continuous_usage_stats)
        self._text_is_all = num_logprobs is None and not self._return_token_ids and not self._counts_always

    @abc.abstractmethod
    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """One chunk for each piece, so that clients can count them."""

    @abc.abstractmethod
    async def whole(self, answer: Answer) -> Any:
        """The answer in one, once every choice has ended."""

    def begin(self, _answer: Answer) -> bytes:
        """Nothing: the first token's chunk says it all."""
        return b""

    def end(self, answer: Answer) -> bytes:
        """The usage, where asked for, and the last line."""
        return (self._chunk([], usage=self._usage(answer)) if self._ends_with_usage else b"") + _DONE

    def fail(self, error: Exception) -> bytes:
        """The error and the last line."""
        return error_frame(error) + _DONE

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        return data_frame({**self._head, "choices": choices, **more})

    def _piece_chunk(self, answer: Answer, choice: Any, **more: Any) -> bytes:
        """The chunk of a piece, which adds to one choice."""
        if self._counts_always:
            more = {"usage": self._usage(answer), **more}
        return self._chunk([choice], **more)

    def _usage(self, answer: Answer) -> Usage:
        prompt, generated = answer.num_prompt_tokens, answer.num_generated_tokens
        details = PromptTokensDetails(answer.num_cached_tokens)
        usage = Usage(prompt, generated, prompt + generated, details)
        if (reasoning := answer.num_reasoning_tokens) is not None:
            usage.completion_tokens_details = CompletionTokensDetails(reasoning)
        return usage

    def _end_fields(self, piece: Piece) -> dict[str, Any]:
        """What choices of every kind say of a piece, behind their text.

        An answer that was cut by its deadline, or because the server had to leave, is shorter than it could have been:
        `length`, with the cause in `stop_reason`.
        """
        reason, stop = piece.finish_reason, piece.stop
        fields: dict[str, Any] = {
            "finish_reason": reason and ("stop" if reason is FinishReason.STOP else "length")
        }
        if stop is None and reason in {FinishReason.TIMEOUT, FinishReason.ABORT}:
            stop = reason.value
        if stop is not None:
            fields["stop_reason"] = stop
        if self._return_token_ids:
            fields["token_ids"] = list(piece.token_ids)
        if self._return_timings and piece.times is not None:
            fields["timings"] = _timings(piece.times)
        return fields

    def _prompt_fields(self, generation: Generation) -> dict[str, Any]:
        """What is said once of a prompt: its log-probabilities and its ids, where asked for."""
        fields: dict[str, Any] = {}
        count, scores = self._num_scored, generation.prompt_logprobs
        if count is not None and scores is not None:
            fields["prompt_logprobs"] = [_position(each, count, self._token_text) for each in scores]
        if self._return_token_ids:
            fields["prompt_token_ids"] = list(generation.prompt_token_ids)
        return fields


def _timings(times: SequenceTimes) -> Timings:
    """Where the time of an answer went."""
    return Timings(
        queue=_between(times.arrived, times.first_scheduled),
        prefill=_between(times.first_scheduled, times.first_token),
        decode=_between(times.first_token, times.finished),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(end - start, 0.0), 6)


def _position(score: TokenLogprobs | None, count: int, text: TokenText) -> PromptPosition:
    """The actual token and the `count` likeliest, by id."""
    if score is None:
        return None
    likely: Sequence[tuple[int, float]] = score.top[:count]
    found = {str(score.token_id): ScoredToken(finite(score.logprob), score.rank, text(score.token_id))}
    for place, (token, logprob) in enumerate(likely, start=1):
        found.setdefault(str(token), ScoredToken(finite(logprob), place, text(token)))
    return found
