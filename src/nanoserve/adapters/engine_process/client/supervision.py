"""Decisions about an engine's life, without a clock of their own: its status, when it is stuck, when to start it again."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.ports.driving import EngineStatus

_AWAY: Final = (EngineStatus.RESTARTING, EngineStatus.FAILED, EngineStatus.STOPPED)
TRANSITIONS: Final = {
    EngineStatus.STARTING: (EngineStatus.READY, EngineStatus.FAILED, EngineStatus.STOPPED),
    EngineStatus.READY: (EngineStatus.STALLED, *_AWAY),
    EngineStatus.STALLED: _AWAY,
    EngineStatus.RESTARTING: (EngineStatus.READY, *_AWAY),
    EngineStatus.FAILED: (EngineStatus.STOPPED,),
    EngineStatus.STOPPED: (),
}
"""What may follow each status; `docs/architecture.md` draws its diagram from this table."""


def following(status: EngineStatus, after: EngineStatus) -> EngineStatus:
    """`after`, which must be allowed to follow `status`."""
    assert after in TRANSITIONS[status], f"{status.value} is never followed by {after.value}"
    return after


MOST_DEATHS: Final = 5
"""Engines that may die in a row, without an answer between them, before no other is started."""
TICK: Final = 0.25
"""Seconds between two looks at an engine."""
_LONGEST_DELAY: Final = 30.0


@attrs.define
class Restarts:
    """Counts deaths; `total` of all time, `in_a_row` since an engine last finished an answer."""

    total: int = 0
    in_a_row: int = 0

    def note_answer(self) -> None:
        """An engine has finished an answer: it works."""
        self.in_a_row = 0

    def note_death(self) -> float | None:
        """Seconds to wait before the next engine (0, 1, 2, 4, ...), or None to give up."""
        self.in_a_row += 1
        if self.in_a_row >= MOST_DEATHS:
            return None
        self.total += 1
        return 0.0 if self.in_a_row == 1 else min(2.0 ** (self.in_a_row - 2), _LONGEST_DELAY)


@attrs.define
class StallWatch:
    """Whether an engine has been silent for `timeout` seconds of our own attention.

    A look that comes late counts for two ticks at most: if this process was stopped or busy itself, the engine's reports
    may lie unread, and its silence proves nothing.
    """

    timeout: float
    last_look: float
    silence: float = 0.0

    def note_progress(self) -> None:
        """The engine has computed something, or has nothing to compute and says so."""
        self.silence = 0.0

    def is_stalled(self, now: float) -> bool:
        """Look at the engine; to be asked once every `TICK`."""
        self.silence += min(now - self.last_look, 2 * TICK)
        self.last_look = now
        return self.silence >= self.timeout
