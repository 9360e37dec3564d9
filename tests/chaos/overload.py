"""More requests than can be served."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

import attrs

from tests.chaos.wire import Outcome, complete

TOKENS: Final = 64


def body(draw: random.Random) -> dict[str, Any]:
    """A streamed request."""
    return {
        "prompt": [draw.randrange(16, 4000) for _ in range(16)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }


@attrs.define
class Flood:
    """What became of the requests.

    Attributes:
        accepted, refused: by their status, 200 or 503; `odd` is everything else.
    """

    accepted: Sequence[Outcome]
    refused: Sequence[Outcome]
    odd: Sequence[Outcome]


async def burst(port: int, count: int) -> Flood:
    """Send so many requests at once."""
    draw = random.Random(7)
    return sort_out(await asyncio.gather(*(complete(port, body(draw)) for _ in range(count))))


def sort_out(outcomes: Sequence[Outcome]) -> Flood:
    """By what became of them."""
    whole = [each for each in outcomes if each.is_whole]
    refused = [each for each in outcomes if each.status == 503]
    odd = [each for each in outcomes if not each.is_whole and each.status != 503]
    return Flood(whole, refused, odd)
