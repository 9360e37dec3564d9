"""Orders that steer an engine, carried out between two turns; files are read in a thread, while steps go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import structlog

from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.engine_link import (
    Obeyed,
    Order,
    Pause,
    ReadWeights,
    Report,
    Resume,
    Sleep,
    WakeUp,
    WriteWeights,
)
from nanoserve.ports.errors import ConflictError, NanoserveError
from nanoserve.ports.steering import PauseMode, WeightsFacts


class Obeying:
    """Obeys orders, and answers each with `Obeyed`.

    Attributes:
        pauses: orders that wait until nothing runs, and whether the engine goes on then.
        reading: the order that the thread is at; one that changes the weights stays until it has.
    """

    def __init__(self, engine: EngineHandle, send: Callable[[Report], None]) -> None:
        self._engine = engine
        self._send = send
        self.pauses: list[tuple[Pause | Sleep, bool]] = []
        self.reading: ReadWeights | WriteWeights | WakeUp | None = None
        self._waiting: list[Order] = []
        self._read: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def obey(self, order: Order) -> None:
        """Carry an order out, or begin to; behind a thread's work and a sleep that has not come yet, each in its turn."""
        if self.reading is not None or any(isinstance(each, Sleep) for each, _ in self.pauses):
            self._waiting.append(order)
            return
        try:
            self._carry_out(order)
        except NanoserveError as error:
            self._refuse(order, error)

    def settle(self) -> None:
        """Nothing runs any more: answer the pauses."""
        pauses, self.pauses = self.pauses, []
        for each, goes_on in pauses:
            if goes_on:
                self._engine.resume()
            try:
                if isinstance(each, Sleep):
                    self._engine.sleep(each.level)
                elif each.forgets:
                    self._engine.forget_prefixes()
            except NanoserveError as error:
                self._refuse(each, error)
            else:
                self._answer(each)
        self._go_on()

    def finish(self) -> None:
        """Go on with what the thread has read; weights are written once no step is in flight."""
        order = self.reading
        if order is None or self._read.empty():
            return
        self.reading = None
        found = self._read.get()
        if isinstance(found, Exception):
            self._refuse(order, found)
        else:
            self._write(order, found)
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.obey(each)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Pause(mode):
                self._engine.pause(mode)
                self.pauses.append((order, False))
                return
            case Sleep():
                self.pauses.append((order, not self._engine.steering.paused))
                self._engine.pause(PauseMode.KEEP)
                return
            case Resume():
                self._engine.resume()
                for each, _ in self.pauses:
                    self._answer(each)
                self.pauses.clear()
            case ReadWeights() | WriteWeights() | WakeUp():
                self._begin(order)
                return
        self._answer(order)

    def _begin(self, order: ReadWeights | WriteWeights | WakeUp) -> None:
        store = self._engine.weight_store
        stands = self._engine.steering.paused or self._engine.steering.asleep
        if isinstance(order, WriteWeights) and self._engine.request_ids() and not stands:
            raise ConflictError("requests are running: pause the engine before its weights are changed")

        def work() -> None:
            try:
                if isinstance(order, WriteWeights):
                    self._read.put(store.complete())
                elif isinstance(order, WakeUp):
                    for part in order.parts:
                        store.wake(part)
                    self._read.put("")
                else:
                    store.read(order.folder, anew=order.anew, partial=order.partial)
                    self._read.put("")
            except Exception as error:  # noqa: BLE001 - it is raised where the order is answered
                self._read.put(error)

        self.reading = order
        threading.Thread(target=work, name="weights", daemon=True).start()

    def _write(self, order: ReadWeights | WriteWeights | WakeUp, digest: str) -> None:
        try:
            if isinstance(order, WakeUp):
                self._engine.note_awake(order.parts)
            if isinstance(order, WriteWeights):
                self._engine.write_weights(_facts(order, digest, self._engine.steering.weights.version))
        except NanoserveError as error:
            self._refuse(order, error)
        else:
            self._answer(order)

    def _answer(self, order: Order) -> None:
        self._send(Obeyed(order.number, steering=self._engine.steering))

    def _refuse(self, order: Order, error: Exception) -> None:
        if not isinstance(error, NanoserveError):
            structlog.get_logger().error("an order could not be carried out", error=repr(error))
            error = ConflictError(f"this could not be done: {error!r}")
        self._send(Obeyed(order.number, type(error).__name__, str(error), self._engine.steering))


def _facts(order: WriteWeights, digest: str, version: int) -> WeightsFacts:
    before = order.as_before
    if before is None:
        return WeightsFacts(version=version + 1, digest=digest, label=order.label or str(version + 1))
    if before.digest != digest:
        raise ConflictError("the files have changed since the engine that has died read them")
    return before
