"""Another rank's side: it loads its part, and computes every plan that comes, until the connection ends."""

from __future__ import annotations

import itertools
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nanoserve.adapters.engine_process.wire import plans
from nanoserve.adapters.engine_process.wire.codec import WireError, bodies_from
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.grammar import Masks
from nanoserve.ports.steering import WeightStore
from nanoserve.ports.step import StepPlan

MakeRunner = Callable[[plans.Build], tuple[Any, WeightStore]]
"""A runner that can draw late, once all ranks have met, and its reader of new weights."""
Load = Callable[[plans.Join], tuple[int, MakeRunner]]
"""Loads a part; returns the bytes free beside it, and the function that makes its runner."""


def follow(connection: socket.socket, load: Load, *, is_watchful: Callable[[plans.Join], bool]) -> int:
    """Serve the first rank at the other end; returns the exit code."""
    wire = plans.RankWire()
    try:
        _follow(connection, wire, load, is_watchful)
    except ConnectionError:  # the first rank has closed the connection, or ended
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the first rank must know
        try:
            connection.sendall(wire.encode(plans.Unable(f"{type(error).__name__}: {error}")))
        except OSError:
            # Such a refusal is the first rank's as well, which has said it.
            if not isinstance(error, NanoserveError):
                traceback.print_exc()
        return 1
    return 0


def _follow(
    connection: socket.socket, wire: plans.RankWire, load: Load, is_watchful: Callable[[plans.Join], bool]
) -> None:
    messages: Iterator[Any] = map(wire.decode, bodies_from(connection))
    join = _expect(plans.Join, next(messages, None))
    available, make_runner = load(join)
    connection.sendall(wire.encode(plans.Loaded(available)))
    runner, weights = make_runner(_expect(plans.Build, next(messages, None)))
    tells = is_watchful(join)
    undrawn: deque[tuple[int, Any]] = deque()

    def tell(step: int, ticket: Any) -> None:
        if tells:
            connection.sendall(wire.encode(plans.Drawn(step, runner.collect(ticket).token_ids)))

    for message in messages:
        match message:
            case plans.Draw(masks, counts):
                step, ticket = undrawn.popleft()
                runner.draw(ticket, _lent(runner, masks, counts))
                tell(step, ticket)
            case plans.Loras(parts):
                runner.loras.take_parts(parts)
            case plans.ReadWeights() | plans.Sleep() | plans.Wake():
                connection.sendall(wire.encode(plans.Done(_obey(weights, message))))
            case plans.WriteWeights():
                weights.write()
            case _:
                plan = _expect(StepPlan, message)
                ticket = runner.submit(plan)
                if plan.masked:
                    undrawn.append((plan.step, ticket))
                else:
                    tell(plan.step, ticket)


def _obey(store: WeightStore, message: plans.ReadWeights | plans.Sleep | plans.Wake) -> str:
    """The reason why it is refused; empty if it is not."""
    try:
        match message:
            case plans.Sleep(level):
                store.sleep(level)
            case plans.Wake(part):
                store.wake(part)
            case plans.ReadWeights(sources, partial):
                for number, source in enumerate(sources):
                    store.read(source, anew=not number, partial=partial)
                store.complete()
    except NanoserveError as error:
        return str(error)
    return ""


def _lent(runner: Any, masks: Mapping[int, bytearray], counts: Mapping[int, int]) -> Masks:
    """Masks of rows, in memory that the runner draws from."""
    every = [counts.get(row, 1) for row in masks]
    block = runner.mask_block(sum(every))
    lent = Masks(block, dict(zip(masks, itertools.accumulate(every, initial=0), strict=False)), counts)
    for row, mask in masks.items():
        lent[row][:] = mask
    return lent


def _expect(kind: type, message: Any) -> Any:
    if message is None:
        raise ConnectionResetError
    if not isinstance(message, kind):
        raise WireError(f"{kind.__name__} was to come, not {type(message).__name__}")
    return message
