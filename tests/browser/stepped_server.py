"""A real server in this process whose engine makes a turn only when a test says so, and can then be looked into.

It is the wiring of `nanoserve serve --in-process`, in a thread; only the engine's `has_work` and `turn` are watched over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs
import structlog

from nanoserve.domain.engine import Engine
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings, ListenSettings, ServeSettings
from nanoserve.entrypoints.compose.engine_client import local_engine
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.entrypoints.server import serve as program
from nanoserve.entrypoints.server.http.security import KeyRing
from nanoserve.entrypoints.server.serving import Serving, Signals
from nanoserve.entrypoints.server.sockets import describe, listening_sockets
from nanoserve.ports.events import EngineEvent
from tests.patience import PATIENCE, wait_until
from tests.unit.entrypoints.in_thread import in_thread


class SteppedEngine(Engine[Any]):
    """Has no work while it is held, except for the turns that are left to it."""

    left: int | None = None
    """Turns that it may still make; None: as many as it likes."""
    changed: threading.Condition

    @property
    def has_work(self) -> bool:
        return super().has_work and self.left != 0

    def turn(self) -> list[EngineEvent]:
        events = super().turn()
        with self.changed:
            if self.left:
                self.left -= 1
            self.changed.notify_all()
        return events


@attrs.define(kw_only=True)
class SteppedServer:
    """`url` leads to it. Look into `engine` only while it is held."""

    url: str
    engine: SteppedEngine

    def hold(self) -> None:
        """Let the engine rest from now on."""
        with self.engine.changed:
            self.engine.left = 0

    def let_go(self) -> None:
        """Let it work as it likes."""
        with self.engine.changed:
            self.engine.left = None

    def turn(self, count: int = 1) -> None:
        """Let it make so many turns, and wait until it has."""
        with self.engine.changed:
            assert self.engine.left == 0, "hold it first"
            self.engine.left = count
            done = self.engine.changed.wait_for(lambda: self.engine.left == 0, PATIENCE)
        assert done, "the engine has nothing to do"

    def turn_until_idle(self) -> None:
        """Let it make turns until nothing is left to do."""
        while self.engine.scheduler.table.requests:
            self.turn()

    def wait_for_living(self, count: int) -> str:
        """Until so many sequences have arrived that have not finished; the id of the newest one's request."""
        requests = self.engine.scheduler.table.requests
        self.wait_for(lambda: sum(map(len, list(requests.values()))) >= count)
        return list(requests)[-1]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something holds of the engine, which may work meanwhile."""
        wait_until(condition)


@contextlib.contextmanager
def stepped_server(**settings: Any) -> Iterator[SteppedServer]:
    """Start one with the model in the box; `settings` are those of the engine."""
    engines: list[SteppedEngine] = []

    def build(settings: EngineSettings, watch: Stopwatch) -> Assembly:
        assembly = assemble(settings, watch)
        assembly.engine.__class__ = SteppedEngine
        assert isinstance(assembly.engine, SteppedEngine)
        assembly.engine.changed = threading.Condition()
        engines.append(assembly.engine)
        return assembly

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with (
        mock.patch.object(program, "local_engine", functools.partial(local_engine, build=build)),
        _serving(settings) as url,
    ):
        yield SteppedServer(url=url, engine=engines[0])
        engines[0].left = None
    structlog.reset_defaults()


@contextlib.contextmanager
def _serving(engine: dict[str, Any]) -> Iterator[str]:
    listen = ListenSettings(port=0, in_process=True, drain_timeout=0.0)
    # A client that left is known by an answer to a write, and a held engine writes nothing.
    bounds = BoundSettings(ping_interval=0.2)
    settings = Serving(
        engine=EngineSettings(**({"max_model_len": 1024, "threads": 1} | engine)),
        serve=ServeSettings(listen=listen, bounds=bounds),
        log=LogSettings(),
    )

    async def serve(ready: threading.Event, stop: asyncio.Event) -> None:
        signals = Signals()
        signals.caught = contextlib.nullcontext  # type: ignore[assignment]

        async def leave() -> None:
            await stop.wait()
            signals.note()

        leaving = asyncio.create_task(leave())
        bound = program.Bound(groups=groups)
        await program.run_server(settings, KeyRing([]), bound, lambda _: ready.set(), signals)
        leaving.cancel()

    with listening_sockets(listen) as groups, in_thread(serve):
        yield describe(groups[0][0])
