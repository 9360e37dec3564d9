"""Finding stop strings in text that is still growing."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class StopMatch:
    """A stop string found at text[start:end]."""

    start: int
    end: int
    stop: str


def find_stop(text: str, stops: Sequence[str], begin: int) -> StopMatch | None:
    """The stop string that ends first in text[begin:]; of two that end together the longer.

    Ending first makes the result the same however the text was cut into tokens.
    """
    matches = []
    for stop in stops:
        start = text.find(stop, begin)
        if start >= 0:
            matches.append(StopMatch(start, start + len(stop), stop))
    return min(matches, key=lambda match: (match.end, match.start), default=None)


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a stop string."""
    longest = min(len(text), max((len(stop) - 1 for stop in stops), default=0))
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(len(stop) > length and stop.startswith(tail) for stop in stops):
            return length
    return 0
