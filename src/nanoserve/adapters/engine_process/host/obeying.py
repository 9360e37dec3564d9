"""Orders that steer an engine, carried out between two turns; what must wait for steps in flight is answered when they are home."""

from __future__ import annotations

from collections.abc import Callable

from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.engine_link import Obeyed, Order, Pause, Report, Resume
from nanoserve.ports.errors import NanoserveError


class Obeying:
    """Obeys orders, and answers each with `Obeyed`.

    Attributes:
        pauses: those that wait until nothing runs.
    """

    def __init__(self, engine: EngineHandle, send: Callable[[Report], None]) -> None:
        self._engine = engine
        self._send = send
        self.pauses: list[Pause] = []

    def obey(self, order: Order) -> None:
        """Carry an order out, or begin to."""
        try:
            self._carry_out(order)
        except NanoserveError as error:
            self._send(Obeyed(order.number, type(error).__name__, str(error), self._engine.steering))

    def settle(self) -> None:
        """Nothing runs any more: answer the pauses."""
        pauses, self.pauses = self.pauses, []
        if any(each.forgets for each in pauses):
            self._engine.forget_prefixes()
        for each in pauses:
            self._answer(each)

    def _carry_out(self, order: Order) -> None:
        match order:
            case Pause(mode):
                self._engine.pause(mode)
                self.pauses.append(order)
                return
            case Resume():
                self._engine.resume()
                for each in self.pauses:
                    self._answer(each)
                self.pauses.clear()
        self._answer(order)

    def _answer(self, order: Order) -> None:
        self._send(Obeyed(order.number, steering=self._engine.steering))
