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
    return min(matches, key=lambda match: (match.end, match.start)) if matches else None


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0 and not stop.startswith(text[start:]):
            start = text.find(stop[0], start + 1)
        if start >= 0:
            longest = max(longest, len(text) - start)
    return longest
