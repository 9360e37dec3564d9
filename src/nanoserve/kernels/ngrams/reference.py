"""A search that is plain to see."""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (4, 3, 2)


def propose(tokens: Sequence[int], count: int) -> list[int]:
    """`count` tokens that may follow; none if there is no match."""
    for size in SIZES:
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                after = start + size
                return [tokens[after + ahead % (len(tokens) - after)] for ahead in range(count)]
    return []
