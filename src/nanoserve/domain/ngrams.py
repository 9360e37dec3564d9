"""Drafts from a sequence's own past: the tokens that followed an earlier occurrence of its newest tokens.

This guesses answers well that copy, edit or quote their prompt, or repeat themselves, at almost no cost (the idea of
prompt lookup decoding, Saxena 2023). There is no model and no state.
"""

from __future__ import annotations

import array
from collections.abc import Sequence

SIZES = (4, 3, 2)
"""Tokens that must agree; the longest match is taken."""
_WIDTH = array.array("i").itemsize


class NGramDrafter:
    """Fulfils `Drafter`: looks for an earlier occurrence of the newest 4, 3 or 2 tokens, from the right."""

    def propose(self, token_ids: Sequence[int], count: int, /) -> Sequence[int]:
        """The tokens that followed then; if they reach the end, they are continued periodically."""
        packed = array.array("i", token_ids).tobytes()  # searching bytes is much faster than comparing lists
        for size in SIZES:
            if (after := _after_match(packed, size)) is not None:
                period = token_ids[after:]
                return [period[place % len(period)] for place in range(count)]
        return ()


def _after_match(packed: bytes, size: int) -> int | None:
    """The position after the rightmost earlier occurrence of the last `size` tokens."""
    wanted, end = packed[-size * _WIDTH :], len(packed) - _WIDTH
    if end < len(wanted):
        return None
    at = packed.rfind(wanted, 0, end)
    while at % _WIDTH and at >= 0:  # bytes of two tokens that only look like one
        at = packed.rfind(wanted, 0, at + len(wanted) - 1)
    return None if at < 0 else at // _WIDTH + size
