"""Runs requests to their ends: all are added before anything runs, and none outlives its caller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from nanoserve.entrypoints.compose.interrupts import deferring_interrupts
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.request import Request


def run(
    engine: EngineHandle, requests: Sequence[Request], after_turn: Callable[[], None] = lambda: None
) -> Generator[EngineEvent]:
    """Yield the engine's events until every sequence has ended; `after_turn` is called after each turn.

    Ctrl-C aborts every request; their last events are still yielded, then `KeyboardInterrupt` is raised. A caller
    that closes the iterator early aborts them too. Raises `PromptRefusedError` with the index of a refused request,
    before anything has run. Either way the engine is empty and usable afterwards.
    """
    living = {request.request_id: request.sampling.n for request in requests}
    try:
        _add_all(engine, requests)
        with deferring_interrupts() as interruption:
            interrupted = False
            while living:
                if interruption.pending and not interrupted:
                    interrupted = True
                    _abort_all(engine, living)
                yield from _turn(engine, living, after_turn)
        if interrupted or interruption.pending:
            raise KeyboardInterrupt
    finally:
        _abandon(engine, living, after_turn)


class PromptRefusedError(BadValueError):
    """One of several prompts cannot be run; `index` says which, `reason` why."""

    def __init__(self, index: int, count: int, reason: str, *, parameter: str = "prompt") -> None:
        if count > 1:
            super().__init__(f"prompts[{index}]", reason)
        else:
            super().__init__(parameter, reason.removeprefix(f"{parameter}: "))
        self.index = index
        self.reason = reason


def refused(index: int, count: int, error: NanoserveError) -> PromptRefusedError:
    """The error of one prompt among `count`, as one that says which."""
    parameter = error.parameter if isinstance(error, BadValueError) else "prompt"
    return PromptRefusedError(index, count, str(error).removeprefix("prompt: "), parameter=parameter)


def _add_all(engine: EngineHandle, requests: Sequence[Request]) -> None:
    for index, request in enumerate(requests):
        try:
            engine.add(request)
        except NanoserveError as error:
            raise refused(index, len(requests), error) from error


def _turn(engine: EngineHandle, living: dict[str, int], after_turn: Callable[[], None]) -> list[EngineEvent]:
    events = engine.turn()
    after_turn()
    for event in events:
        if isinstance(event, TokensGenerated) and event.finish_reason is not None:
            _forget(event.request_id, living)
    return events


def _forget(request_id: str, living: dict[str, int]) -> None:
    living[request_id] -= 1
    if not living[request_id]:
        del living[request_id]


def _abort_all(engine: EngineHandle, living: dict[str, int]) -> None:
    for request_id in living:
        engine.abort(request_id)


def _abandon(engine: EngineHandle, living: dict[str, int], after_turn: Callable[[], None]) -> None:
    _abort_all(engine, living)
    while living and engine.has_work:
        _turn(engine, living, after_turn)
