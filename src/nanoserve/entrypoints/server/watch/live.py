"""`/live`: the engine's steps as server-sent events, while a viewer stays.

Three kinds of events: `status` twice per second, and with steps also `header`, the first line of the step log, and
`trace`, an array of its records. docs/trace.md has their fields.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import attrs
import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from nanoserve.entrypoints.app.live_feed import LiveFeed, LogPart, Redaction, StepViewer
from nanoserve.entrypoints.app.measurements import Measurements, RecentValues
from nanoserve.entrypoints.app.orders import CURRENT
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.sse import EventStream, Frames, named_frame
from nanoserve.entrypoints.server.watch.health import Health
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_facts import EngineState

STATUS_PERIOD: Final = 0.5
"""Seconds between two status events."""
NOTHING_YET: Final = EngineState(at=0.0, last_step=0.0)
_SAME_NAMES: Final = (
    *("running", "waiting", "preemptions", "steps"),
    *("prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits"),
)
"""The fields that `LiveStatus` has from `EngineState`."""


class LiveLatency(msgspec.Struct):
    """Seconds that half of all, and all but one in a hundred, stayed below."""

    p50: float
    p99: float


class LiveBlocks(msgspec.Struct):
    """KV blocks; the cached ones are free."""

    total: int
    free: int
    cached: int


class LiveStatus(msgspec.Struct, kw_only=True):
    """The server at one moment; counts continue when the engine is restarted.

    Attributes:
        status: of the engine; `open` says whether requests are taken, `draining` whether the server is leaving.
        at: seconds, on the clock of the step log.
        rejected: requests that were turned away, by reason.
        ttft, itl: of the last half minute; None if there was none.
    """

    status: str
    draining: bool
    open: bool
    restarts: int
    at: float
    running: int
    waiting: int
    finished: dict[str, int]
    rejected: dict[str, int]
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int
    prefix_hits: int
    blocks: LiveBlocks
    steps: int
    ttft: LiveLatency | None
    itl: LiveLatency | None
    viewers: int


@attrs.define(kw_only=True, eq=False)
class Live:
    """Serves viewers. Nothing waits for them, and they end with the server.

    Attributes:
        ping_interval: seconds of silence after which a stream says that it is alive.
        redaction: takes out what was asked and answered; None if all viewers may read it, or nothing is there.
    """

    feed: LiveFeed
    engine: EngineClient
    measurements: Measurements
    health: Health
    max_viewers: int
    ping_interval: float
    viewers: int = 0
    redaction: Redaction | None = None

    async def frames(self, *, steps: bool) -> Frames:
        """The events for one viewer. Raises `RequestError` if there are too many of them."""
        if self.viewers >= self.max_viewers:
            message = (
                f"too many viewers: {self.max_viewers} watching already; close one, or start the server with a larger "
                "--max-viewers."
            )
            raise RequestError(503, message, code="too_many_viewers", headers={"retry-after": "5"})
        self.viewers += 1
        try:
            with self.feed.steps() if steps else contextlib.nullcontext() as viewer:
                async for frame in self._show(viewer):
                    yield frame
        finally:
            self.viewers -= 1

    def status(self) -> LiveStatus:
        """Now."""
        self.measurements.refresh(self.engine.state)
        facts, recent = self.engine.facts, self.measurements.recent
        total = facts.num_kv_blocks if facts else 0
        state = self.engine.state or attrs.evolve(NOTHING_YET, free_blocks=total)
        same = {name: getattr(state, name) for name in _SAME_NAMES}
        return LiveStatus(
            **same,
            status=self.engine.status.value,
            draining=self.health.is_draining,
            open=self.health.is_open,
            restarts=self.engine.restarts,
            at=self.feed.now,
            finished=dict(state.finished),
            rejected=dict(self.measurements.tallies.rejected.read()),
            blocks=LiveBlocks(total, state.free_blocks, state.cached_blocks),
            ttft=_latency(recent["first_token"]),
            itl=_latency(recent["inter_token"]),
            viewers=self.viewers,
        )

    async def _show(self, viewer: StepViewer | None) -> Frames:
        header, next_status = b"", 0.0
        while not self.feed.closed.is_set():
            if self.feed.now >= next_status:
                next_status = self.feed.now + STATUS_PERIOD
                yield named_frame("status", self.status())
            patience = max(next_status - self.feed.now, 0.0)
            part = await self._next(viewer, patience)
            if part is not None:
                if part.header not in {None, header}:
                    header = part.header or b""
                    yield b"event: header\ndata: " + header + b"\n\n"
                yield _trace_frame(part)
        yield named_frame("status", self.status())

    async def _next(self, viewer: StepViewer | None, patience: float) -> LogPart | None:
        if viewer is not None:
            part = await viewer.next(patience)
            return part if part is None or self.redaction is None else self.redaction.redacted(part)
        await self.feed.wait_for_end(patience)
        return None


@functools.lru_cache(maxsize=4)
def _trace_frame(part: LogPart) -> bytes:
    """One encoding of the events for all viewers."""
    return b"event: trace\ndata: [" + part.lines.replace(b"\n", b",") + b"]\n\n"


def _latency(seen: RecentValues) -> LiveLatency | None:
    p50, p99 = seen.quantile(0.5), seen.quantile(0.99)
    return None if p50 is None or p99 is None else LiveLatency(p50, p99)


@get("/live", summary="Watch the engine", tags=["operation"], media_type="text/event-stream")
async def live_route(
    request: Request[Any, Any, Any],
    live: NamedDependency[Live],
    steps: FromQuery[bool] = True,
) -> Response[Any]:
    """Server-sent events without end: `status` twice per second, and with `steps` the step log."""
    if (facts := CURRENT.get()) is not None:
        facts.is_endless = True
    stream = EventStream(request, live.frames(steps=steps), ping_interval=live.ping_interval)
    await stream.begin()
    return stream


ROUTES: Final = (live_route,)
