"""What the probes say: whether the process lives, whether it should get requests, whether the engine makes progress."""

from __future__ import annotations

import attrs

from nanoserve.ports.driven import Clock
from nanoserve.ports.driving import EngineClient, EngineStatus


@attrs.define(kw_only=True, eq=False)
class Health:
    """Answers from what is known already; asks nobody and never waits.

    Attributes:
        stall_timeout: seconds without a sign of life, or with work and without a step, that mean trouble.
        is_open: whether the service is assembled and takes requests.
        is_draining: whether the server is leaving.
    """

    engine: EngineClient
    clock: Clock
    stall_timeout: float
    is_open: bool = False
    is_draining: bool = False
    _busy_since: float | None = None

    @property
    def obstacle_to_life(self) -> str | None:
        """Why the process should be started again; None while it is fine or can help itself."""
        return "the engine has failed for good" if self.engine.status is EngineStatus.FAILED else None

    @property
    def obstacle_to_progress(self) -> str | None:
        """Why requests would not be computed right now."""
        status = self.engine.status
        if status is not EngineStatus.READY:
            return f"the engine is {status.value}"
        if self.engine.facts is not None and self._silent_for() > self.stall_timeout:
            return "the engine gives no sign of life"
        if self.last_step_age() > self.stall_timeout:
            return "the engine has work and makes no step"
        return None

    @property
    def obstacle_to_requests(self) -> str | None:
        """Why no request should be sent here now."""
        if self.is_draining:
            return "the server is leaving"
        if not self.is_open:
            return self.obstacle_to_life or "the server is starting"
        return self.obstacle_to_progress

    def last_step_age(self) -> float:
        """Seconds that the engine has had work and made no step; 0 while it has none."""
        state, now = self.engine.state, self.clock.now()
        if state is None or not state.running + state.waiting:
            self._busy_since = None
            return 0.0
        if self._busy_since is None:
            self._busy_since = now
        return max(now - max(state.last_step, self._busy_since), 0.0)

    def _silent_for(self) -> float:
        return self.clock.now() - self.engine.last_report
