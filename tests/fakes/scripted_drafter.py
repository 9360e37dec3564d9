"""A drafter that is right as often as a test wants: it knows how sequences go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.served import Answer

Continuation = Callable[[Sequence[int], int], Sequence[int]]
"""The tokens that follow, so many of them."""


class ScriptedDrafter:
    """Guesses `right` tokens, each with probability `acceptance`, and else the id after it; remembers how many were right from the start on."""

    def __init__(
        self, right: Continuation, acceptance: float, dice: random.Random, *, vocab_size: int
    ) -> None:
        self._right, self._acceptance, self._dice = right, acceptance, dice
        self._vocab_size = vocab_size
        self.leads: list[int] = []

    def propose(self, token_ids: Sequence[int], count: int, /) -> list[int]:
        right = self._right(token_ids, count)
        guesses = [
            token if self._dice.random() < self._acceptance else (token + 1) % self._vocab_size
            for token in right
        ]
        agrees = [guess == token for guess, token in zip(guesses, right, strict=True)]
        self.leads.append([*agrees, False].index(False))
        return guesses


def knowing(
    prompts: Sequence[list[int]], answers: Sequence[Answer], acceptance: float, *, vocab_size: int
) -> ScriptedDrafter:
    """Looks the answer up; two prompts are never alike so far."""
    texts = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]

    def right(tokens: Sequence[int], count: int) -> list[int]:
        known = next((each for each in texts if each[: len(tokens)] == list(tokens)), None)
        return [1] * count if known is None else (known[len(tokens) :] + [1] * count)[:count]

    return ScriptedDrafter(right, acceptance, random.Random(3), vocab_size=vocab_size)
