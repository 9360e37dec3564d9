"""Small servers of the tests, each with an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

from tests.patience import PATIENCE

Serve = Callable[[threading.Event, asyncio.Event], Awaitable[None]]
"""Sets the first once it listens, and returns after the second is set."""


@contextlib.contextmanager
def in_thread(serve: Serve) -> Iterator[None]:
    """It listens for as long as the context lasts."""
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def live() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        await serve(ready, stop)

    thread = threading.Thread(target=asyncio.run, args=(live(),), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
