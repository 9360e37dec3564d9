"""All requests that wait for answers: the engine's events are sorted to them, and they outlive the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from nanoserve.adapters.engine_process.client.ledger import REFUSED, Ledger
from nanoserve.adapters.engine_process.client.pending_reply import PendingReply
from nanoserve.ports import errors
from nanoserve.ports.engine_link import Refused
from nanoserve.ports.errors import BadValueError, DuplicateRequestError, EngineDiedError, NanoserveError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import FinishReason, Request

_KNOWN: Final = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, NanoserveError)
}


def reported_error(name: str, message: str) -> NanoserveError:
    """What the engine's process raised; an error of no class of ours becomes a plain `NanoserveError`."""
    if name == BadValueError.__name__:
        parameter, _, rest = message.partition(": ")
        return BadValueError(parameter, rest)
    return _KNOWN.get(name, NanoserveError)(message)


class Replies:
    """Replies by request. `abort` tells the engine that a request's client has left.

    Attributes:
        ledger: counts their sequences.
    """

    def __init__(self, abort: Callable[[str], None], ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self._abort = abort
        self._living: dict[str, PendingReply] = {}

    def __len__(self) -> int:
        return len(self._living)

    def open(self, request: Request) -> PendingReply:
        """A reply to a request that no engine has yet."""
        if request.request_id in self._living:
            raise DuplicateRequestError(f"request {request.request_id!r} is already being served")
        reply = PendingReply(request, self.ledger, self._cancel)
        self._living[request.request_id] = reply
        return reply

    def take(self, events: Sequence[EngineEvent]) -> bool:
        """Sort events to their replies; whether they ended one with an answer."""
        living, answered = self._living, False
        for event in events:
            reply = living.get(event.request_id)
            if reply is not None:
                reply.take(event)
                if reply.is_over:
                    del living[event.request_id]
                    answered = answered or not reply.cancelled
        return answered

    def refuse(self, refused: Refused) -> None:
        """The engine has turned a request away."""
        if reply := self._living.get(refused.request_id):
            self.fail(reply, reported_error(refused.error, refused.message), REFUSED)

    def lose_engine(self) -> tuple[int, int]:
        """The engine has died. Requests with nothing delivered wait for the next one, all others end.

        Returns how many wait, and how many have ended.
        """
        died, requeued = list(self._living.values()), 0
        for reply in died:
            if reply.can_start_anew:
                reply.forget_engine()
                requeued += 1
            elif reply.cancelled:
                self._end(reply, FinishReason.ABORT)
            else:
                self.fail(reply, EngineDiedError(_cause(reply)))
        return requeued, len(died) - requeued

    def without_engine(self) -> list[PendingReply]:
        """The replies whose requests the living engine does not have, the oldest first."""
        return [reply for reply in self._living.values() if not reply.engine_has_it]

    def end_overdue(self, now: float) -> None:
        """End the requests without an engine that would have run out of time with one."""
        for reply in self.without_engine():
            if _is_overdue(reply, now):
                self._end(reply, FinishReason.TIMEOUT)

    def fail_all(self, error: NanoserveError) -> None:
        """End every request with an error."""
        for reply in list(self._living.values()):
            self.fail(reply, error)

    def fail(
        self, reply: PendingReply, error: NanoserveError, reason: str = FinishReason.ERROR.value
    ) -> None:
        """End one request with an error."""
        del self._living[reply.request.request_id]
        reply.fail(error, reason)

    def _cancel(self, reply: PendingReply) -> None:
        if reply.engine_has_it:
            self._abort(reply.request.request_id)
        else:
            self._end(reply, FinishReason.ABORT)

    def _end(self, reply: PendingReply, reason: FinishReason) -> None:
        del self._living[reply.request.request_id]
        reply.end(reason)


def remaining(request: Request, waited: float) -> Request:
    """The request as it is handed to an engine after it has waited for one: with less patience left."""
    if request.queue_timeout is None:
        return request
    return attrs.evolve(request, queue_timeout=max(0.0, request.queue_timeout - waited))


def _is_overdue(reply: PendingReply, now: float) -> bool:
    request = reply.request
    if request.deadline is not None and now >= request.deadline:
        return True
    return request.queue_timeout is not None and now - reply.submitted_at >= request.queue_timeout


def _cause(reply: PendingReply) -> str:
    if reply.has_been_read:
        return "the engine ended in the middle of the answer; send the request again"
    return "the engine ended twice while it computed this request, which is not tried a third time"
