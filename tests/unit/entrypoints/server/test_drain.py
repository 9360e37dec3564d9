"""Signals and the drain: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from nanoserve.entrypoints.server.signals import LeavingError, Signals, drain


class Health:
    is_draining = False


class Server:
    def __init__(self) -> None:
        self.health: Any = Health()
        self.service = None


async def drained(living: list[int], patience: float, now: asyncio.Event | None = None) -> tuple[bool, float]:
    server: Any = Server()
    began = time.monotonic()
    done = await drain(server, living.__len__, patience=patience, now=now or asyncio.Event())
    assert server.health.is_draining
    return done, time.monotonic() - began


def test_nothing_living_is_nothing_to_wait_for() -> None:
    assert asyncio.run(drained([], 30.0))[0]


def test_the_last_one_is_waited_for() -> None:
    async def run() -> bool:
        living = [1]
        asyncio.get_running_loop().call_later(0.05, living.clear)
        return (await drained(living, 30.0))[0]

    assert asyncio.run(run())


def test_patience_ends() -> None:
    done, seconds = asyncio.run(drained([1], 0.1))
    assert not done
    assert seconds < 5


def test_a_second_signal_ends_it() -> None:
    async def run() -> bool:
        now = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, now.set)
        return (await drained([1], 30.0, now))[0]

    assert not asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_are_counted(number: signal.Signals) -> None:
    signals = Signals()
    with signals.caught():
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.leave.wait(), 60)
        assert not signals.now.is_set()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.now.wait(), 60)


async def test_work_ends_when_a_signal_comes_first() -> None:
    signals = Signals()
    assert await signals.unless_leaving(asyncio.sleep(0, "done")) == "done"
    asyncio.get_running_loop().call_later(0.02, signals.note)
    with pytest.raises(LeavingError):
        await signals.unless_leaving(asyncio.sleep(60))
