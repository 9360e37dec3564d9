"""Log-probabilities in the three forms of the wire: legacy completions, chat, and prompt positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nanoserve.entrypoints.server.protocols.openai.answers import (
    ChatLogprobs,
    ChatPosition,
    ChatToken,
    CompletionLogprobs,
    PromptPosition,
    ScoredToken,
)
from nanoserve.ports.step import TokenLogprobs

TokenText = Callable[[int], str]

_LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
_REPLACEMENT: Final = "\ufffd"


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
        token_logprobs=[None if each is None else _finite(each.logprob) for each in scores],
        tokens=[text(token) for token in token_ids],
        top_logprobs=[None if each is None else _by_text(each, count, text) for each in scores],
    )


def chat_logprobs(scores: Sequence[TokenLogprobs], count: int, text: TokenText) -> ChatLogprobs:
    """One entry per token of the answer, with the `count` likeliest."""
    return ChatLogprobs([_chat_position(each, count, text) for each in scores])


def prompt_positions(
    scores: Sequence[TokenLogprobs | None], count: int, text: TokenText
) -> list[PromptPosition]:
    """One entry per token of the prompt: the actual token and the `count` likeliest, by id."""
    return [None if each is None else _position(each, count, text) for each in scores]


def _by_text(score: TokenLogprobs, count: int, text: TokenText) -> dict[str, float]:
    """By text, the actual token always among them. Where tokens look alike the likeliest is told."""
    found: dict[str, float] = {}
    for token, logprob in (*score.top[:count], (score.token_id, score.logprob)):
        found.setdefault(text(token), _finite(logprob))
    return found


def _chat_position(score: TokenLogprobs, count: int, text: TokenText) -> ChatPosition:
    own = _chat_token(score.token_id, score.logprob, text)
    likeliest = [_chat_token(token, logprob, text) for token, logprob in score.top[:count]]
    return ChatPosition(own.token, own.logprob, own.bytes, likeliest)


def _chat_token(token_id: int, logprob: float, text: TokenText) -> ChatToken:
    shown = text(token_id)
    return ChatToken(shown, _finite(logprob), None if _REPLACEMENT in shown else list(shown.encode()))


def _position(score: TokenLogprobs, count: int, text: TokenText) -> dict[str, ScoredToken]:
    found = {str(score.token_id): ScoredToken(_finite(score.logprob), score.rank, text(score.token_id))}
    for place, (token, logprob) in enumerate(score.top[:count], start=1):
        found.setdefault(str(token), ScoredToken(_finite(logprob), place, text(token)))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
