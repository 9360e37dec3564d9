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
def in_thread(serve: Serve) -> Iterator[asyncio.AbstractEventLoop]:
    """It listens for as long as the context lasts; the loop is the one that it runs on."""
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def live() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        try:
            await serve(ready, stop)
        finally:
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(live(),), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    assert thread.is_alive(), "the server did not start"
    loop, stop = loops[0]
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()
