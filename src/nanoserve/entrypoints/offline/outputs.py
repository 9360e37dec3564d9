"""What callers get back: the names and shapes of vLLM's `RequestOutput`, as frozen values."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.step import TokenLogprobs


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
    """What a request's life looked like; times are readings of one monotonic clock, in seconds.

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
        index: which of the request's `n` sequences it is.
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
        """Whether nothing more will come."""
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


def position_logprobs(scored: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """One position by token id, each token with its own text."""
    ranked = [(scored.token_id, scored.logprob, scored.rank)]
    ranked += [(token, logprob, rank) for rank, (token, logprob) in enumerate(scored.top, start=1)]
    entries: PositionLogprobs = {}
    for token, logprob, rank in ranked:
        entries.setdefault(token, Logprob(logprob, rank, _text_of(token, tokenizer)))
    return entries


def prompt_positions(
    scored: Iterable[TokenLogprobs | None], tokenizer: Tokenizer
) -> list[PositionLogprobs | None]:
    """All positions of a prompt; the first has nothing before it and stays None."""
    return [None if each is None else position_logprobs(each, tokenizer) for each in scored]


def _text_of(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.decode([token], skip_special_tokens=False)
