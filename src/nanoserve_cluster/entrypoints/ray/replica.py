"""One replica: an actor of Ray's that runs `nanoserve serve` on a port of its own, and says how it is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import attrs
import ray.util
import structlog

from nanoserve.entrypoints.compose.log import configure_log
from nanoserve.entrypoints.compose.process import prepare_process
from nanoserve.entrypoints.server.report import Started
from nanoserve.entrypoints.server.serve import serve
from nanoserve.entrypoints.server.serving import Serving, Signals
from nanoserve.entrypoints.server.sockets import describe
from nanoserve.ports.driving import EngineStatus
from nanoserve_cluster.entrypoints.ray.directory import Entry, keep_reporting

_NOTICE: Final = 3.0
"""Seconds in which every router has seen a new replica, so that the old one that Ray ends next is not missed."""


class Asked(Signals):
    """Leaves the process's signals to Ray; another thread asks instead."""

    _loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Nothing is caught."""
        self._loop = asyncio.get_running_loop()
        yield

    def ask(self) -> None:
        """Ask the server to leave."""
        if self._loop is None:  # nothing waits yet
            self.note()
        else:
            self._loop.call_soon_threadsafe(self.note)


class RayReplica:
    """The server in a thread with an event loop of its own. Requests come to its port and never through Ray.

    Args:
        serving: what it serves with.
        directory: the handle of the deployment of `Directory`.
    """

    async def __init__(self, serving: Serving, directory: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        prepare_process()
        configure_log(serving.log)
        place: dict[str, Any] = {"host": ray.util.get_node_ip_address(), "port": 0}
        listen = attrs.evolve(serving.serve.listen, **place, uds=None, admin_uds=None, metrics_port=None)
        self._serving = attrs.evolve(serving, serve=attrs.evolve(serving.serve, listen=listen))
        self._asked = Asked()
        self._loop = asyncio.get_running_loop()
        self._starting: asyncio.Future[Started] = self._loop.create_future()
        self._thread = threading.Thread(target=self._serve, name="nanoserve", daemon=True)
        self._thread.start()
        self._started = await self._starting
        self._reporting = asyncio.create_task(keep_reporting(directory, Entry("replica", self.address)))
        await asyncio.sleep(_NOTICE)

    @property
    def address(self) -> str:
        """Where it listens."""
        return describe(self._started.sockets[0])

    async def check_health(self) -> None:
        """Raise where nothing but a new process helps; an engine that is being started again is no reason."""
        if not self._thread.is_alive() or self._engine.status is EngineStatus.FAILED:
            raise RuntimeError(f"the engine of {self.address} is {self._engine.status.value}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The numbers that `scale_by_queue` reads."""
        state, facts = self._engine.state, self._engine.facts
        if state is None or facts is None:
            return {}
        return {
            "running": state.running_requests,
            "waiting": state.waiting_requests,
            "rows": facts.max_num_seqs,
        }

    async def __del__(self) -> None:
        """Take no more requests, finish those that there are, and end; Ray waits for it."""
        if self._thread.is_alive():
            self._asked.ask()
            await asyncio.to_thread(self._thread.join)
        self._reporting.cancel()

    @property
    def _engine(self) -> Any:
        return self._started.service.engine

    def _serve(self) -> None:
        try:
            serve(self._serving, self._settle, self._asked)
        except BaseException as error:  # noqa: BLE001 - it is raised where the replica is started
            structlog.get_logger().exception("the server has ended", error=str(error))
            self._settle(error)

    def _settle(self, outcome: Started | BaseException) -> None:
        def settle() -> None:
            if self._starting.done():
                return
            if isinstance(outcome, Started):
                self._starting.set_result(outcome)
            else:
                self._starting.set_exception(RuntimeError(f"{outcome}"))

        self._loop.call_soon_threadsafe(settle)
