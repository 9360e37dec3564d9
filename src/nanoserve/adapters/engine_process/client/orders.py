"""Orders to an engine: numbered commands that it answers, and what the engine that follows it does again."""

from __future__ import annotations

import asyncio
import itertools

import attrs
import structlog

from nanoserve.adapters.engine_process.client.requests import Requests, reported_error
from nanoserve.ports import engine_link as link
from nanoserve.ports import errors
from nanoserve.ports.steering import PARTS, PauseMode, Steering


class Orders:
    """Adapters by name, a pause, updates of weights and sleep: what was asked for last, and what was done.

    Attributes:
        folders: of the adapters that were loaded, by name.
    """

    def __init__(self, requests: Requests) -> None:
        self.folders: dict[str, str] = {}
        self._requests = requests
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._ordered: dict[int, link.Order] = {}
        self._pause: link.Pause | None = None
        self._sleep: link.Sleep | None = None
        self._steering = Steering()
        self._weights = self._steering.weights
        self._read: list[link.ReadWeights] = []
        self._updates: list[list[link.ReadWeights]] = []
        self._restoring: set[int] = set()
        self._restored: set[int] = set()
        self._lost = ""

    @property
    def steering(self) -> Steering:
        """Where the engine stood when it last obeyed an order; a pause counts from the moment at which it is asked for."""
        lost = self._lost or self._steering.lost
        return attrs.evolve(self._steering, paused=self._pause is not None or bool(lost), lost=lost)

    async def load_lora(self, name: str, folder: str) -> None:
        """Return once the adapter is there."""
        await self._ask(link.LoadLora(next(self._numbers), name, folder))
        self.folders[name] = folder

    async def unload_lora(self, name: str) -> None:
        """Return once requests can no longer name it."""
        await self._ask(link.UnloadLora(next(self._numbers), name))
        self.folders.pop(name, None)

    async def steer(self, order: link.Order) -> Steering:
        """Return once the engine has obeyed."""
        match order:
            case link.Pause():
                self._pause = order
            case link.Resume() if self.steering.lost or self._steering.asleep:
                raise errors.ConflictError(self.steering.lost or "the engine is asleep: wake it up first")
            case link.Resume():
                self._pause = None
        numbered = attrs.evolve(order, number=next(self._numbers))
        self._ordered[numbered.number] = order
        await self._ask(numbered)
        return self.steering

    def restore(self) -> None:
        """Have a new engine read the weights and adapters again that the one before had; until it has the weights, it is paused."""
        self._lost = ""
        if self._updates or self._sleep or self._pause is not None:
            self._requests.send(link.Pause(PauseMode.KEEP))
        orders: list[link.Order] = []
        for update in self._updates:
            as_before = self._weights if update is self._updates[-1] else None
            orders += [*update, link.WriteWeights(as_before=as_before)]
        if self._sleep is not None:
            awake = [each for each in PARTS if each not in self._steering.asleep]
            orders += [self._sleep, *([link.WakeUp(tuple(awake))] if awake else ())]
        numbered = [attrs.evolve(each, number=next(self._numbers)) for each in orders]
        self._restored = {each.number for each in numbered}
        self._restoring = set(self._restored)
        for each in numbered:
            self._requests.send(each)
        for name, folder in self.folders.items():
            self._requests.send(link.LoadLora(next(self._numbers), name, folder, at_once=True))

    def lose_engine(self) -> None:
        """The engine is not there, or does not answer: nobody waits for it any more."""
        self._ordered.clear()
        for answer in self._asked.values():
            if not answer.done():
                message = "the engine ended before it had done this; ask for it again"
                answer.set_exception(errors.EngineDiedError(message))

    def take(self, report: link.Obeyed) -> None:
        """The engine has obeyed, or has not and says why."""
        self._restoring.discard(report.number)
        if not self._restoring:  # until then the new engine is not yet what the one before was
            self._steering = report.steering or self._steering
        if report.number in self._restored:
            self._note_restored(report)
            return
        order = self._ordered.pop(report.number, None)
        if not report.error:
            self._note_obeyed(order)
        answer = self._asked.get(report.number)
        if answer is None or answer.done():  # of what a new engine has to do again
            if report.error:
                structlog.get_logger().error("a new engine could not do this again", reason=report.message)
        elif report.error:
            answer.set_exception(reported_error(report.error, report.message))
        else:
            answer.set_result(None)

    async def _ask(self, command: link.LoadLora | link.UnloadLora | link.Order) -> None:
        answer = self._asked[command.number] = asyncio.get_running_loop().create_future()
        try:
            self._requests.send(command)
            await answer
        finally:
            del self._asked[command.number]

    def _note_obeyed(self, order: link.Order | None) -> None:
        """Noted when it is done, though nobody may wait for that any more."""
        match order:
            case link.ReadWeights():
                self._read = [*(() if order.anew else self._read), order]
            case link.WriteWeights():
                self._weights, partial = self._steering.weights, self._read[0].partial
                self._updates = [*(self._updates if partial else ()), self._read]
                if self._lost and not partial:
                    self._lost = ""
                    self._go_on()
            case link.Sleep():
                self._sleep = order
            case link.WakeUp() if not self._steering.asleep:
                self._sleep = None

    def _note_restored(self, report: link.Obeyed) -> None:
        if report.error and not self._lost:
            name = self._weights.label
            self._lost = f"the engine died, and its weights {name!r} cannot be read again: {report.message}; update all"
            structlog.get_logger().error("the engine stays paused", reason=self._lost)
        if not self._restoring and not self._lost:
            self._go_on()

    def _go_on(self) -> None:
        if self._pause is None:
            self._requests.send(link.Resume())
