"""Log-probabilities of generated tokens as most protocols write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from nanoserve.ports.step import TokenLogprobs

TokenText = Callable[[int], str]

_LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
_REPLACEMENT: Final = "\ufffd"


class LikelyToken(msgspec.Struct):
    """A token that could have stood at a position; `bytes` are null where they are part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenToken(LikelyToken):
    """The token at one position of the answer, and the likeliest ones there."""

    top_logprobs: list[LikelyToken]


def chosen_tokens(
    scores: Sequence[TokenLogprobs], count: int, text: TokenText, *, partial: list[int] | None = None
) -> list[ChosenToken]:
    """One entry per token, with the `count` likeliest; `partial` stands for the bytes of a part of a character."""

    def fields(token_id: int, logprob: float) -> tuple[str, float, list[int] | None]:
        shown = text(token_id)
        return shown, finite(logprob), partial if _REPLACEMENT in shown else list(shown.encode())

    return [
        ChosenToken(
            *fields(each.token_id, each.logprob),
            [LikelyToken(*fields(*likely)) for likely in each.top[:count]],
        )
        for each in scores
    ]


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return max(logprob, _LOWEST)
