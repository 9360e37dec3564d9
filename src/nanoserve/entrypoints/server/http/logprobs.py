"""Log-probabilities of generated tokens as most protocols write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from nanoserve.ports.step import TokenLogprobs

TokenText = Callable[[int], str]
Token = Callable[[int], tuple[str, bytes]]
"""The text and the bytes of a token."""

_LOWEST: Final = -9999.0
"""The number for minus infinity, which JSON does not have."""


class LikelyToken(msgspec.Struct):
    """A token that could have stood at a position; its `bytes` may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(LikelyToken):
    """The token at one position of the answer, and the likeliest ones there."""

    top_logprobs: list[LikelyToken]


def chosen_tokens(scores: Sequence[TokenLogprobs], count: int, token: Token) -> list[ChosenToken]:
    """One entry per token, with the `count` likeliest."""

    def fields(token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        shown, as_bytes = token(token_id)
        return shown, finite(logprob), list(as_bytes)

    return [
        ChosenToken(
            *fields(each.token_id, each.logprob),
            [LikelyToken(*fields(*likely)) for likely in each.top[:count]],
        )
        for each in scores
    ]


def as_id(token_id: int) -> tuple[str, bytes]:
    """A token by its id, as vLLM writes it under `return_tokens_as_token_ids`."""
    name = f"token_id:{token_id}"
    return name, name.encode()


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return max(logprob, _LOWEST)
