"""Outputs for callers, in the names and shapes of vLLM's `RequestOutput`, and how a `PromptJob` gathers them from the engine's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import attrs

from nanoserve.entrypoints.app.answer import joined_pieces
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.ports import events
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import TokenLogprobs

PromptForm = str | Sequence[int] | Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Prompt:
    """A prompt that is ready to be asked; `text` is None if it came as ids; the `second` of a pair begins there, or 0."""

    text: str | None
    token_ids: tuple[int, ...]
    second: int = 0


def is_one_prompt(prompts: object) -> bool:
    """True if this is a prompt itself and not a list of them."""
    if isinstance(prompts, (str, Mapping)):
        return True
    if not isinstance(prompts, Sequence) or not prompts:
        return False
    return all(isinstance(each, SupportsIndex) and not isinstance(each, bool) for each in prompts)


@attrs.frozen
class Logprob:
    """The natural logarithm of a token's probability, its rank (1 is the likeliest) and its own text."""

    logprob: float
    rank: int
    decoded_token: str


PositionLogprobs = dict[int, Logprob]
"""One position: the actual token first, then the likeliest ones, by token id."""


@attrs.frozen(kw_only=True)
class RequestMetrics:
    """The times of a request's life, readings of one monotonic clock, in seconds.

    Attributes:
        first_token_time: when the first of its sequences got its first token; None if none did.
        num_cached_tokens: prompt tokens whose keys and values were found in the prefix cache.
        num_preemptions: how often one of its sequences had to give its blocks back.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float | None
    num_cached_tokens: int
    num_preemptions: int

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@attrs.frozen(kw_only=True)
class CompletionOutput:
    """One generated sequence.

    Attributes:
        logprobs: one entry per token, where asked for.
        cumulative_logprob: the sum of the tokens' own log-probabilities, where asked for.
        finish_reason: `stop`, `length` or `abort`; None while it grows.
        stop_reason: the stop text or stop token id that ended it; None for end-of-sequence.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None
    cumulative_logprob: float | None
    finish_reason: str | None
    stop_reason: str | int | None

    def finished(self) -> bool:
        """True if nothing more will come."""
        return self.finish_reason is not None


@attrs.frozen(kw_only=True)
class RequestOutput:
    """One prompt with everything generated from it.

    Attributes:
        prompt: the text; None for a prompt of token ids.
        prompt_logprobs: one entry per prompt token, where asked for; the first is None.
        num_cached_tokens: prompt tokens found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return self.metrics.num_cached_tokens if self.metrics else 0


@attrs.frozen(kw_only=True)
class EmbeddingOutput:
    """The vector of one text, and the number of its tokens that were found in the prefix cache."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    embedding: list[float]
    num_cached_tokens: int = 0


@attrs.frozen
class ClassificationOutput:
    """The likeliest class of a text, and a number for each by its name."""

    request_id: str
    prompt_token_ids: list[int]
    label: str
    scores: Mapping[str, float]


@attrs.frozen
class TokenClassificationOutput:
    """The likeliest class of each token of a text, special ones included, and a number for each class by its name."""

    request_id: str
    prompt_token_ids: list[int]
    labels: list[str]
    scores: list[Mapping[str, float]]


class PromptJob:
    """A request with its prompt; it takes events and returns the output so far, or the `pooled` vector of its prompt."""

    def __init__(self, prompt: Prompt, request: Request, tokenizer: Tokenizer) -> None:
        self.prompt = prompt
        self.request = request
        self._tokenizer = tokenizer
        self._pieces: list[list[Piece]] = [[] for _ in range(request.sampling.n)]
        self._prompt_scores: tuple[TokenLogprobs | None, ...] | None = None
        self._preemptions = 0
        self.pooled: tuple[float, ...] | None = None

    def take(self, event: events.EngineEvent) -> None:
        """Note one event of this request."""
        if isinstance(event, events.TokensGenerated):
            self._pieces[event.index].append(event)
        elif isinstance(event, events.PromptScored):
            self._prompt_scores = event.logprobs
        elif isinstance(event, events.PromptPooled):
            self.pooled = event.vector
        elif isinstance(event, events.SequencePreempted):
            self._preemptions += 1

    @property
    def has_run(self) -> bool:
        """True if any of its sequences got as far as a token or its end."""
        return any(self._pieces)

    @property
    def finished(self) -> bool:
        """True if all its sequences have ended."""
        return all(each and each[-1].finish_reason for each in self._pieces)

    @property
    def error(self) -> str | None:
        """The error of a sequence that the engine could not finish."""
        failed = [each for each in self._last if each.finish_reason is FinishReason.ERROR]
        return failed[0].error or "the step failed" if failed else None

    @property
    def _last(self) -> list[Piece]:
        return [each[-1] for each in self._pieces if each]

    def output(self) -> RequestOutput:
        """Everything so far."""
        scores, tokenizer = self._prompt_scores, self._tokenizer
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=list(self.prompt.token_ids),
            prompt_logprobs=None
            if scores is None
            else [None if each is None else position_logprobs(each, tokenizer) for each in scores],
            outputs=[self._completion(index, each) for index, each in enumerate(self._pieces)],
            finished=self.finished,
            metrics=self._metrics(),
        )

    def _completion(self, index: int, pieces: Sequence[Piece]) -> CompletionOutput:
        wants_logprobs = self.request.sampling.logprobs is not None
        whole = joined_pieces(pieces) if pieces else None
        scores = whole.logprobs if whole else ()
        return CompletionOutput(
            index=index,
            text=whole.text if whole else "",
            token_ids=list(whole.token_ids) if whole else [],
            logprobs=[position_logprobs(each, self._tokenizer) for each in scores]
            if wants_logprobs
            else None,
            cumulative_logprob=sum(each.logprob for each in scores) if wants_logprobs else None,
            finish_reason=whole.finish_reason.value if whole and whole.finish_reason else None,
            stop_reason=whole.stop if whole else None,
        )

    def _metrics(self) -> RequestMetrics | None:
        times = [each.times for each in self._last if each.times]
        if not times:
            return None
        scheduled, first, finished = (
            [value for each in times if (value := getattr(each, name)) is not None]
            for name in ("first_scheduled", "first_token", "finished")
        )
        return RequestMetrics(
            arrival_time=min(each.arrived for each in times),
            first_scheduled_time=min(scheduled, default=None),
            first_token_time=min(first, default=None),
            finished_time=max(finished, default=None),
            num_cached_tokens=max(each.num_cached_tokens for each in self._last),
            num_preemptions=self._preemptions,
        )


def position_logprobs(scored: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """One position by token id, each token with its own text."""
    ranked = [(scored.token_id, scored.logprob, scored.rank)]
    ranked += [(token, logprob, rank) for rank, (token, logprob) in enumerate(scored.top, start=1)]
    entries: PositionLogprobs = {}
    for token, logprob, rank in ranked:
        entries.setdefault(
            token, Logprob(logprob, rank, tokenizer.decode([token], skip_special_tokens=False))
        )
    return entries
