"""uvicorn on our sockets, in our loop, without its signals; and its logs, written like our own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

import structlog
import uvicorn

from nanoserve.entrypoints.compose.config import ServeSettings
from nanoserve.entrypoints.server.http.limits import BoundedConfig
from nanoserve.ports.counts import Counts

_FAREWELL: Final = 2
"""Seconds that connections are given to end once everything that was accepted has been answered."""


class _Server(uvicorn.Server):
    """Leaves signals alone, and notes when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the sockets, and note it."""
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing to capture."""
        yield


class HttpServer:
    """One application on some sockets.

    Args:
        rejected: counts what was turned away before it became a request.
        connections: counts the open ones; those of other sockets by itself.
    """

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        settings: ServeSettings,
        rejected: Counts,
        connections: Counts | None = None,
    ) -> None:
        config = BoundedConfig(
            app,
            settings.bounds,
            rejected,
            connections or Counts(),
            loop="none",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=settings.listen.backlog,
            timeout_keep_alive=settings.bounds.keep_alive,
        )
        self._server = _Server(config)
        self._sockets = list(sockets)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on."""
        self._task = asyncio.create_task(self._server.serve(self._sockets))
        coming_up = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait({self._task, coming_up}, return_when=asyncio.FIRST_COMPLETED)
        if not coming_up.done():
            coming_up.cancel()
            await self._task

    async def stop(self, *, now: bool = False, patience: float = _FAREWELL) -> None:
        """Close what listens, let what is being sent end within `patience` (not if `now`), and return when all is closed."""
        self._server.config.timeout_graceful_shutdown = math.ceil(patience)
        self._server.should_exit = True
        self._server.force_exit = now
        if self._task is not None:
            await self._task


_LOGGERS: Final = ("uvicorn.error", "asyncio")


class _Bridge(logging.Handler):
    """Hands records on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record on, with its traceback where it has one."""
        structlog.get_logger().log(
            record.levelno, record.getMessage(), library=record.name, exc_info=record.exc_info or None
        )


def bridge_library_logs() -> None:
    """To be called once; idempotent."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [_Bridge()]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
