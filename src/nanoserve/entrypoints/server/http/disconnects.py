"""Clients that may leave: when one has hung up is seen here, and work for it is cancelled."""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from litestar import Request
from litestar.types import Receive

from nanoserve.entrypoints.server.http.errors import RequestError

T = TypeVar("T")


class ClientLeftError(RequestError):
    """The client hung up; the status is the customary one of access logs."""

    def __init__(self) -> None:
        super().__init__(499, "The client left before the answer was complete.", code="client_left")


async def left(receive: Receive) -> None:
    """Return when the client has hung up; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and `ClientLeftError` raised, when the client hangs up first."""
    return await unless(left(request.receive), work, ClientLeftError)


async def unless(event: Awaitable[object], work: Awaitable[T], error: type[Exception]) -> T:
    """The result of `work`, which is cancelled, and `error` raised, when the event comes first."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(event)
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise error
        return working.result()
    finally:
        await end(working, watching)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they are gone; what they raise is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class HangUp:
    """Calls `on_gone` when the peer of a socket has closed it, where all that is known is that it sends no more.

    Half a close and a whole one look alike until something is sent: then a peer that has closed its socket resets the
    connection. A poll that waits for no event reports that, and is quiet while the other half is open. Linux only.
    """

    def __init__(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        assert sys.platform == "linux"
        self._poll = select.epoll()
        self._poll.register(descriptor, 0)
        asyncio.get_running_loop().add_reader(self._poll.fileno(), on_gone)

    def close(self) -> None:
        """Watch no longer; may be called twice."""
        if not self._poll.closed:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
