"""Signals and the drain: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from nanoserve.entrypoints.server.serving import LeavingError, Signals, drain
from nanoserve.ports.errors import ConflictError
from nanoserve.ports.steering import PARTS, Steering
from tests.patience import PATIENCE


class Health:
    is_draining = False


class Engine:
    def __init__(self, steering: Steering) -> None:
        self.steering = steering

    async def steer(self, order: object) -> None:
        raise ConflictError(f"{order} cannot be obeyed")


class Server:
    def __init__(self, steering: Steering) -> None:
        self.engine = Engine(steering)
        self.health: Any = Health()
        self.service = None


async def drained(
    living: list[int], patience: float, now: asyncio.Event | None = None, steering: Steering | None = None
) -> bool:
    server: Any = Server(steering or Steering())
    done = await drain(server, living.__len__, patience=patience, now=now or asyncio.Event())
    assert server.health.is_draining
    return done


async def test_nothing_living_is_nothing_to_wait_for() -> None:
    assert await drained([], 600.0)


async def test_the_last_one_is_waited_for() -> None:
    living = [1]
    asyncio.get_running_loop().call_later(0.05, living.clear)
    assert await drained(living, 600.0)


async def test_patience_ends() -> None:
    assert not await drained([1], 0.1)


@pytest.mark.parametrize("steering", [Steering(asleep=PARTS), Steering(paused=True, lost="files are gone")])
async def test_an_engine_that_cannot_go_on_is_not_waited_for(steering: Steering) -> None:
    assert not await asyncio.wait_for(drained([1], 10 * PATIENCE, steering=steering), PATIENCE)


async def test_a_second_signal_ends_it() -> None:
    now = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, now.set)
    assert not await drained([1], 600.0, now)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_are_counted(number: signal.Signals) -> None:
    signals = Signals()
    with signals.caught():
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.leave.wait(), PATIENCE)
        assert not signals.now.is_set()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.now.wait(), PATIENCE)


async def test_work_ends_when_a_signal_comes_first() -> None:
    signals = Signals()
    assert await signals.unless_leaving(asyncio.sleep(0, "done")) == "done"
    asyncio.get_running_loop().call_later(0.02, signals.note)
    with pytest.raises(LeavingError):
        await signals.unless_leaving(asyncio.sleep(60))
