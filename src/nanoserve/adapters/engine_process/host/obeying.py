"""Orders that steer an engine, carried out between two turns; files are read in a thread, while steps go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import structlog

from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.engine_link import Obeyed, Order, Pause, ReadWeights, Report, Resume, WriteWeights
from nanoserve.ports.errors import ConflictError, NanoserveError
from nanoserve.ports.steering import WeightsFacts


class Obeying:
    """Obeys orders, and answers each with `Obeyed`.

    Attributes:
        pauses: those that wait until nothing runs.
        reading: the order that the thread is at; one that changes the weights stays until it has.
    """

    def __init__(self, engine: EngineHandle, send: Callable[[Report], None]) -> None:
        self._engine = engine
        self._send = send
        self.pauses: list[Pause] = []
        self.reading: ReadWeights | WriteWeights | None = None
        self._waiting: list[Order] = []
        self._read: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def obey(self, order: Order) -> None:
        """Carry an order out, or begin to; behind weights that are being read, each in its turn."""
        if self.reading is not None:
            self._waiting.append(order)
            return
        try:
            self._carry_out(order)
        except NanoserveError as error:
            self._refuse(order, error)

    def settle(self) -> None:
        """Nothing runs any more: answer the pauses."""
        pauses, self.pauses = self.pauses, []
        if any(each.forgets for each in pauses):
            self._engine.forget_prefixes()
        for each in pauses:
            self._answer(each)

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
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.obey(each)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Pause(mode):
                self._engine.pause(mode)
                self.pauses.append(order)
                return
            case Resume():
                self._engine.resume()
                self.settle()
            case ReadWeights() | WriteWeights():
                self._begin(order)
                return
        self._answer(order)

    def _begin(self, order: ReadWeights | WriteWeights) -> None:
        store = self._engine.weight_store
        if (
            isinstance(order, WriteWeights)
            and self._engine.request_ids()
            and not self._engine.steering.paused
        ):
            raise ConflictError("requests are running: pause the engine before its weights are changed")

        def work() -> None:
            try:
                if isinstance(order, WriteWeights):
                    self._read.put(store.complete())
                else:
                    store.read(order.folder, anew=order.anew, partial=order.partial)
                    self._read.put("")
            except Exception as error:  # noqa: BLE001 - it is raised where the order is answered
                self._read.put(error)

        self.reading = order
        threading.Thread(target=work, name="weights", daemon=True).start()

    def _write(self, order: ReadWeights | WriteWeights, digest: str) -> None:
        try:
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
