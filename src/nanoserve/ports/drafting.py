"""The port for drafters: guesses of how a sequence goes on, which wide steps compare with what is drawn (`ports/step.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Guesses from a sequence's own tokens; a runner whose rows are in the host's memory asks it at the start of a wide step.

    Whatever it says, answers stay as they are: a good guess saves a step, a bad one costs a little. A drafter on a device is a kernel of
    its runner and no port: it reads the same tokens, and writes its guesses behind them.
    """

    def propose(self, token_ids: Sequence[int], count: int, /) -> Sequence[int]:
        """Up to `count` tokens that may follow; none where it has no guess. Ids are of the vocabulary."""
