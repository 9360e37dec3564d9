"""An engine counts as stuck when a test says so, and not after seconds."""

from __future__ import annotations

from tests.unit.adapters.engine_process.client.engines import RemoteEngine, until


class HandWatch:
    """In the place of `StallWatch`: counts progress."""

    stuck = False
    progress = 0

    def __init__(self, timeout: float, last_look: float) -> None:
        pass

    def note_progress(self) -> None:
        HandWatch.progress += 1

    def is_stalled(self, now: float) -> bool:
        return HandWatch.stuck


async def replace_stuck(engine: RemoteEngine, watch: type[HandWatch]) -> None:
    """Find the engine stuck, once."""
    restarts, watch.stuck = engine.restarts, True
    await until(lambda: engine.restarts == restarts + 1, "the restart")
    watch.stuck = False
