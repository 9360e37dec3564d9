"""Adapters and commands that steer an engine: carried out between two turns; files are read in threads, while steps continue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

import structlog

from nanoserve.ports import engine_link
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import ConflictError, NanoserveError
from nanoserve.ports.lora import LoraFacts
from nanoserve.ports.steering import PauseMode, WeightsFacts

READ_PERIOD: Final = 0.01
"""Seconds between two checks of reads, of an idle engine."""


class LoraReading:
    """Obeys `LoadLora` and `UnloadLora`, and answers with `Obeyed`; `begun` is how many adapters are being read."""

    def __init__(self, engine: EngineHandle, send: Callable[[engine_link.Report], None]) -> None:
        self.begun = 0
        self._engine = engine
        self._send = send
        self._read: queue.SimpleQueue[tuple[engine_link.LoadLora, LoraFacts | Exception]] = (
            queue.SimpleQueue()
        )

    def begin(self, command: engine_link.LoadLora) -> None:
        """Read in a thread, which is waited for if that is asked for."""
        self.begun += 1
        thread = threading.Thread(target=self._put, args=(command,), name="lora", daemon=True)
        thread.start()
        if command.at_once:
            thread.join()
            self.finish()

    def finish(self) -> None:
        """Name the adapters that were read since the last call."""
        while not self._read.empty():
            command, found = self._read.get()
            self.begun -= 1
            if isinstance(found, Exception):
                self._refuse(command.number, found)
            else:
                self._engine.name_lora(command.name, found)
                self._send(engine_link.Obeyed(command.number))

    def unload(self, command: engine_link.UnloadLora) -> None:
        """Forget a name."""
        try:
            self._engine.forget_lora(command.name)
        except NanoserveError as error:
            self._refuse(command.number, error)
        else:
            self._send(engine_link.Obeyed(command.number))

    def _put(self, command: engine_link.LoadLora) -> None:
        try:
            self._read.put((command, self._engine.read_lora(command.folder)))
        except Exception as error:  # noqa: BLE001 - whatever a file does to its reader must not end the engine
            self._read.put((command, error))

    def _refuse(self, number: int, error: Exception) -> None:
        if not isinstance(error, NanoserveError):
            structlog.get_logger().error("an adapter could not be read", error=repr(error))
        self._send(engine_link.Obeyed(number, type(error).__name__, str(error)))


class Obeying:
    """Carries out commands, and answers each with `Obeyed`.

    Attributes:
        pauses: orders that wait until nothing runs, and whether the engine goes on then.
        reading: the order that the thread is at; one that changes the weights stays until it has.
    """

    def __init__(self, engine: EngineHandle, send: Callable[[engine_link.Report], None]) -> None:
        self._engine = engine
        self._send = send
        self.pauses: list[tuple[engine_link.Pause | engine_link.Sleep, bool]] = []
        self.reading: engine_link.ReadWeights | engine_link.WriteWeights | engine_link.WakeUp | None = None
        self._waiting: list[engine_link.Order] = []
        self._read: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def obey(self, order: engine_link.Order) -> None:
        """Carry an order out, or begin to; behind a thread's work and a sleep that has not come yet, each in its turn."""
        if self.reading is not None or any(isinstance(each, engine_link.Sleep) for each, _ in self.pauses):
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
                if isinstance(each, engine_link.Sleep):
                    self._engine.sleep(each.level)
                elif each.forgets:
                    self._engine.forget_prefixes()
            except NanoserveError as error:
                self._refuse(each, error)
            else:
                self._answer(each)
        self._go_on()

    def finish(self) -> None:
        """Continue after the thread has read; weights are written once no step is in flight."""
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

    def _carry_out(self, order: engine_link.Order) -> None:
        match order:
            case engine_link.Pause(mode):
                self._engine.pause(mode)
                self.pauses.append((order, False))
                return
            case engine_link.Sleep():
                self.pauses.append((order, not self._engine.steering.paused))
                self._engine.pause(PauseMode.KEEP)
                return
            case engine_link.Resume():
                self._engine.resume()
                for each, _ in self.pauses:
                    self._answer(each)
                self.pauses.clear()
            case engine_link.ReadWeights() | engine_link.WriteWeights() | engine_link.WakeUp():
                self._begin(order)
                return
        self._answer(order)

    def _begin(self, order: engine_link.ReadWeights | engine_link.WriteWeights | engine_link.WakeUp) -> None:
        store = self._engine.weight_store
        stands = self._engine.steering.paused or self._engine.steering.asleep
        if isinstance(order, engine_link.WriteWeights) and self._engine.request_ids() and not stands:
            raise ConflictError("requests are running: pause the engine before you change its weights")

        def work() -> None:
            try:
                if isinstance(order, engine_link.WriteWeights):
                    self._read.put(store.complete())
                elif isinstance(order, engine_link.WakeUp):
                    for part in order.parts:
                        store.wake(part)
                    self._read.put("")
                else:
                    store.read(order.tensors or order.folder, anew=order.anew, partial=order.partial)
                    self._read.put("")
            except Exception as error:  # noqa: BLE001 - it is raised where the order is answered
                self._read.put(error)

        self.reading = order
        threading.Thread(target=work, name="weights", daemon=True).start()

    def _write(
        self, order: engine_link.ReadWeights | engine_link.WriteWeights | engine_link.WakeUp, digest: str
    ) -> None:
        try:
            if isinstance(order, engine_link.WakeUp):
                self._engine.note_awake(order.parts)
            if isinstance(order, engine_link.WriteWeights):
                self._engine.write_weights(_facts(order, digest, self._engine.steering.weights.version))
        except NanoserveError as error:
            self._refuse(order, error)
        else:
            self._answer(order)

    def _answer(self, order: engine_link.Order) -> None:
        self._send(engine_link.Obeyed(order.number, steering=self._engine.steering))

    def _refuse(self, order: engine_link.Order, error: Exception) -> None:
        if not isinstance(error, NanoserveError):
            structlog.get_logger().error("an order could not be carried out", error=repr(error))
            error = ConflictError(f"this could not be done: {error!r}")
        self._send(engine_link.Obeyed(order.number, type(error).__name__, str(error), self._engine.steering))


def _facts(order: engine_link.WriteWeights, digest: str, version: int) -> WeightsFacts:
    before = order.as_before
    if before is None:
        return WeightsFacts(version=version + 1, digest=digest, label=order.label or str(version + 1))
    if before.digest != digest:
        raise ConflictError("the files have changed since the engine that has died read them")
    return before
