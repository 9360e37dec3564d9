"""Leaving without losing anybody: nothing new is let in, what lives is finished, and there is an end to patience."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from nanoserve.entrypoints.http.app import Server

_POLL: Final = 0.02


async def drain(server: Server, living: Callable[[], int], *, patience: float, now: asyncio.Event) -> bool:
    """Wait until nothing lives any more; False where patience came to an end before, or was called off (`now`).

    From the first moment on `/readyz` and every new order are answered with 503.
    """
    log = structlog.get_logger()
    server.health.is_draining = True
    service = server.service
    if service is not None:
        service.begin_drain()
    log.info("leaving: no more requests are taken", living=living(), patience=patience)
    deadline = time.monotonic() + patience
    while living() or (service is not None and service.active):
        if now.is_set() or time.monotonic() >= deadline:
            log.warning("requests are ended unfinished", living=living(), asked=now.is_set())
            return False
        await asyncio.sleep(_POLL)
    return True
