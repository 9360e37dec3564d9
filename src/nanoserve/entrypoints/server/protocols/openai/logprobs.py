"""Log-probabilities in the two forms that only completions and prompts have."""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve.entrypoints.server.http.logprobs import TokenText, finite
from nanoserve.entrypoints.server.protocols.openai.answers import (
    CompletionLogprobs,
    PromptPosition,
    ScoredToken,
)
from nanoserve.ports.step import TokenLogprobs


def legacy_logprobs(
    token_ids: Sequence[int],
    scores: Sequence[TokenLogprobs | None],
    offsets: Sequence[int],
    count: int,
    text: TokenText,
) -> CompletionLogprobs:
    """Four parallel lists; a token that nothing precedes has a null in two of them."""
    return CompletionLogprobs(
        text_offset=list(offsets),
        token_logprobs=[None if each is None else finite(each.logprob) for each in scores],
        tokens=[text(token) for token in token_ids],
        top_logprobs=[None if each is None else _by_text(each, count, text) for each in scores],
    )


def prompt_positions(
    scores: Sequence[TokenLogprobs | None], count: int, text: TokenText
) -> list[PromptPosition]:
    """One entry per token of the prompt: the actual token and the `count` likeliest, by id."""
    return [None if each is None else _position(each, count, text) for each in scores]


def _by_text(score: TokenLogprobs, count: int, text: TokenText) -> dict[str, float]:
    """By text, the actual token always among them; of tokens that look alike the likeliest."""
    found: dict[str, float] = {}
    for token, logprob in (*score.top[:count], (score.token_id, score.logprob)):
        found.setdefault(text(token), finite(logprob))
    return found


def _position(score: TokenLogprobs, count: int, text: TokenText) -> dict[str, ScoredToken]:
    found = {str(score.token_id): ScoredToken(finite(score.logprob), score.rank, text(score.token_id))}
    for place, (token, logprob) in enumerate(score.top[:count], start=1):
        found.setdefault(str(token), ScoredToken(finite(logprob), place, text(token)))
    return found
