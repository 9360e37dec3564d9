"""What clients of an engine that may be replaced have in common: requests that wait for the next one."""

from __future__ import annotations

import asyncio
import time

from nanoserve.adapters.engine_process.client.pending_reply import PendingReply
from nanoserve.adapters.engine_process.client.replies import remaining
from nanoserve.adapters.engine_process.client.reported_engine import ReportedEngine
from nanoserve.adapters.engine_process.client.supervision import TICK
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Add
from nanoserve.ports.errors import BadValueError, EngineLoadingError
from nanoserve.ports.request import Request


class ReplacedEngine(ReportedEngine):
    """Hands requests to the engine that is there, and again to the next one where nothing of them was delivered yet."""

    def submit(self, request: Request) -> PendingReply:
        """Hand a request over, to the next engine if need be; one that cannot be sent at all is a `BadValueError`."""
        if self._status is EngineStatus.STARTING:
            raise EngineLoadingError("the engine is starting")
        if self._status in {EngineStatus.FAILED, EngineStatus.STOPPED}:
            raise EngineLoadingError("the engine has ended and is not started again", retry_after=30)
        reply = self._replies.open(request)
        if self._has_engine:
            self._hand_over(reply)
        return reply

    @property
    def _has_engine(self) -> bool:
        """Whether there is an engine to hand requests to."""
        raise NotImplementedError

    def _hand_over(self, reply: PendingReply) -> None:
        try:
            self._send(Add(remaining(reply.request, time.monotonic() - reply.submitted_at)))
        except BadValueError as error:
            self._replies.fail(reply, error)
        else:
            reply.num_engines += 1
            reply.engine_has_it = True

    def _hand_over_waiting(self) -> None:
        """An engine has become ready: what waits for one is its work now."""
        for reply in self._replies.without_engine():
            self._hand_over(reply)

    async def _end_overdue(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._replies.end_overdue(time.monotonic())
