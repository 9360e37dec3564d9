"""The probes, open without a key: whether the process lives, whether to send it requests, whether the engine makes progress."""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgspec
from litestar import HttpMethod, MediaType, Response, route
from litestar.di import NamedDependency

from nanoserve.ports.driven import Clock
from nanoserve.ports.driving import EngineClient, EngineStatus


@attrs.define(kw_only=True, eq=False)
class Health:
    """Answers from known state; asks no other process and never waits.

    Attributes:
        stall_timeout: seconds without a sign of life, or with work and without a step, that mean trouble.
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
        if self.engine.facts is not None and self.clock.now() - self.engine.last_report > self.stall_timeout:
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
        """Seconds that the engine has had work and made no step; 0 while it has none or is paused."""
        state, now = self.engine.state, self.clock.now()
        if state is None or state.paused or not state.running + state.waiting:
            self._busy_since = None
            return 0.0
        if self._busy_since is None:
            self._busy_since = now
        return max(now - max(state.last_step, self._busy_since), 0.0)


_METHODS: Final = (HttpMethod.GET, HttpMethod.HEAD)


class ProbeAnswer(msgspec.Struct, omit_defaults=True):
    """`ok`, or why not."""

    status: str
    reason: str | None = None


@route("/livez", http_method=_METHODS, summary="Whether the process lives", tags=["probes"])
async def livez(health: NamedDependency[Health]) -> Response[Any]:
    """503 only where nothing but a new process helps."""
    return _answer(health.obstacle_to_life)


@route("/readyz", http_method=_METHODS, summary="Whether to send requests here", tags=["probes"])
async def readyz(health: NamedDependency[Health]) -> Response[Any]:
    """200 once the model is warm, 503 at once when the server begins to leave."""
    return _answer(health.obstacle_to_requests)


@route("/health", http_method=_METHODS, summary="Whether the engine makes progress", tags=["probes"])
async def health_route(health: NamedDependency[Health]) -> Response[Any]:
    """503 while the engine is away, silent, or has work and makes no step."""
    return _answer(health.obstacle_to_progress)


def _answer(obstacle: str | None) -> Response[Any]:
    answer = ProbeAnswer("ok") if obstacle is None else ProbeAnswer("unavailable", obstacle)
    return Response(
        msgspec.json.encode(answer),
        status_code=200 if obstacle is None else 503,
        media_type=MediaType.JSON,
        headers={"cache-control": "no-store"} | ({} if obstacle is None else {"retry-after": "1"}),
    )


ROUTES: Final = (livez, readyz, health_route)
