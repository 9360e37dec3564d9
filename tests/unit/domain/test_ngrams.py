"""Drafts by n-grams against a search that is plain to see."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nanoserve.domain.ngrams import SIZES, NGramDrafter


def plain(token_ids: Sequence[int], count: int) -> list[int]:
    tokens = list(token_ids)
    for size in SIZES:
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                guess = list(tokens)
                while len(guess) < len(tokens) + count:
                    guess.append(guess[start + size + len(guess) - len(tokens)])
                return guess[len(tokens) :]
    return []


def test_the_longest_and_newest_match_is_taken() -> None:
    propose = NGramDrafter().propose
    assert list(propose([1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2)) == [9, 2]
    assert list(propose([2, 3, 9, 2, 3, 7, 1, 2, 3], 1)) == [7]
    assert list(propose([5, 5, 5, 5], 5)) == [5] * 5
    assert not list(propose([1, 2, 3, 4], 3))
    assert not list(propose([1], 3))
    assert not list(propose([1, 2], 3))


def test_random_tokens_are_found_as_a_plain_search_finds_them() -> None:
    dice = random.Random(0)
    for _ in range(3_000):
        high = dice.choice([2, 4, 300, 2**31 - 1])
        tokens = [
            dice.choice([0, 1, 256, 65536, 16777216, dice.randrange(high)])
            for _ in range(dice.randint(1, 40))
        ]
        count = dice.randint(1, 8)
        assert list(NGramDrafter().propose(tokens, count)) == plain(tokens, count)
