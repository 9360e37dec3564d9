"""A process that waits to be the next engine: who becomes the engine, what follows it, and that nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
from typing import Any

import psutil
import pytest
import structlog

from nanoserve.adapters.engine_process.client import supervisor
from nanoserve.adapters.engine_process.client.supervisor import Spare
from nanoserve.ports.driving import EngineStatus
from tests.unit.adapters.engine_process.client.engines import (
    SCRIPTED,
    Answer,
    RemoteEngine,
    expected,
    pid_of,
    read,
    request,
    scripted_engine,
    started,
    until,
    until_restarted,
)

PROMPT = (1, 2, 3)


def hosts() -> set[int]:
    """The living engines and spares."""
    found = set()
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if tuple(each.cmdline()[: len(SCRIPTED)]) == SCRIPTED:
                found.add(each.pid)
    return found


def spares(engine: RemoteEngine) -> list[int]:
    return sorted(hosts() - {pid_of(engine)})


async def spare_of(engine: RemoteEngine, but: int = 0) -> int:
    await until(lambda: spares(engine) not in ([], [but]), "a spare")
    [pid] = spares(engine)
    return pid


def descriptors() -> int:
    return psutil.Process().num_fds()


async def answered(engine: RemoteEngine, name: str) -> None:
    assert (await read(engine.submit(request(name)))).ids == expected(PROMPT)


async def test_the_spare_becomes_the_engine_and_another_one_takes_its_place() -> None:
    before = descriptors()
    async with started(scripted_engine(spare=True)) as engine:
        for death in range(1, 4):
            spare = await spare_of(engine)
            held = asyncio.create_task(read(engine.submit(request(f"held-{death}", stream=False))))
            os.kill(pid_of(engine), signal.SIGKILL)
            await until_restarted(engine, death)
            assert pid_of(engine) == spare
            assert (await held).ids == expected(PROMPT)
            await answered(engine, f"new-{death}")
            assert await spare_of(engine) != spare
    assert descriptors() <= before  # what earlier tests left behind may be closed meanwhile
    assert hosts() == set()


@pytest.mark.parametrize("wanted", [False, True])
async def test_no_spare_before_the_engine_is_ready_and_none_where_it_is_not_wanted(wanted: bool) -> None:
    engine = scripted_engine(model="slow", spare=wanted)
    launched: list[str] = []
    launch = engine.keeper._launch

    async def noting() -> Any:
        launched.append(engine.status.value)
        return await launch()

    engine.keeper._launch = engine.keeper.spare._launch = noting  # type: ignore[assignment]
    async with started(engine):
        await answered(engine, "r")
        await until(lambda: len(launched) == 1 + wanted)
        assert launched == ["starting", "ready"][: 1 + wanted]
        assert len(spares(engine)) == wanted


async def test_a_spare_that_dies_is_replaced_and_is_no_death_of_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    async with started(scripted_engine(spare=True)) as engine:
        first = await spare_of(engine)
        pid = pid_of(engine)
        os.kill(first, signal.SIGKILL)
        second = await spare_of(engine, but=first)
        assert (engine.restarts, pid_of(engine), engine.status) == (0, pid, EngineStatus.READY)
        os.kill(pid, signal.SIGKILL)
        await until_restarted(engine, 1)
        assert pid_of(engine) == second


@pytest.mark.parametrize("frozen", [False, True])
async def test_when_both_die_a_new_process_is_started_and_one_death_counted(frozen: bool) -> None:
    """A spare that looks alive when it is taken, and is not, costs nothing but the try."""
    async with started(scripted_engine(spare=True)) as engine:
        first, spare = pid_of(engine), await spare_of(engine)
        held = asyncio.create_task(read(engine.submit(request("held", stream=False))))
        if frozen:
            os.kill(spare, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        if frozen:
            await until(lambda: engine.status is EngineStatus.RESTARTING)
        os.kill(spare, signal.SIGKILL)
        await until_restarted(engine, 1)
        assert pid_of(engine) not in {first, spare}
        assert (await held).ids == expected(PROMPT)


async def test_killing_that_is_cancelled_at_the_moment_of_the_end_is_cancelled() -> None:
    """Or the keeper of a spare would go on to the next one, and whoever takes the engine's place would wait for it."""
    async with started(scripted_engine(spare=True)) as engine:
        await spare_of(engine)
        process = await engine.keeper.spare.take()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await process.gone.wait()
        await until(lambda: process._process.poll() is not None)
        for ticks in range(3):
            process.gone = asyncio.Event()
            killing = asyncio.create_task(process.kill())
            for _ in range(5):
                await asyncio.sleep(0)
            process.gone.set()
            for _ in range(ticks):
                await asyncio.sleep(0)
            if killing.cancel():
                await asyncio.wait({killing})
                assert killing.cancelled(), ticks
        await process.kill()


async def test_a_prepared_spare_that_is_frozen_is_given_up_for_a_new_process() -> None:
    async with started(scripted_engine(spare=True, reaction_timeout=0.01)) as engine:
        first, spare = pid_of(engine), await spare_of(engine)
        await until(lambda: engine.keeper.spare._process and engine.keeper.spare._process.is_prepared)
        held = asyncio.create_task(read(engine.submit(request("held", stream=False))))
        os.kill(spare, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        await until_restarted(engine, 1)
        assert pid_of(engine) not in {first, spare}
        assert (await held).ids == expected(PROMPT)
        assert await spare_of(engine) != spare


async def test_a_spare_that_is_still_importing_is_waited_for() -> None:
    async with started(scripted_engine(spare=True, reaction_timeout=0.0)) as engine:
        spare = await spare_of(engine)
        await until(lambda: engine.keeper.spare._process)
        process = engine.keeper.spare._process
        assert process is not None
        process.on_report = lambda _report: None  # as if it had not said that it is prepared
        process.is_prepared = False
        os.kill(pid_of(engine), signal.SIGKILL)
        await until_restarted(engine, 1)
        assert pid_of(engine) == spare


async def test_a_stop_while_the_spare_takes_over_ends_everything() -> None:
    engine = scripted_engine(spare=True)
    await engine.start()
    spare = await spare_of(engine)
    os.kill(spare, signal.SIGSTOP)
    waiting: asyncio.Task[Answer] = asyncio.create_task(read(engine.submit(request("r", stream=False))))
    os.kill(pid_of(engine), signal.SIGKILL)
    await until(lambda: engine.status is EngineStatus.RESTARTING)
    await engine.stop()
    assert type((await waiting).error).__name__ == "DrainingError"
    assert hosts() == set()


async def test_a_take_over_that_is_cancelled_leaves_no_process() -> None:
    engine = scripted_engine(spare=True)
    async with started(engine):
        await spare_of(engine)
        await until(lambda: engine.keeper.spare._process)
        taking = asyncio.create_task(engine.keeper.spare.take())
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait({taking})
        assert taking.cancelled()
    assert hosts() == set()


async def test_the_pause_before_another_spare_doubles_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            raise asyncio.CancelledError

    async def launch() -> Any:
        raise FileNotFoundError("no such program")

    monkeypatch.setattr("nanoserve.adapters.engine_process.client.supervisor.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await Spare(launch, wanted=True)._keep()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


async def test_a_spare_ignores_the_terminal_and_holds_no_socket_but_its_own() -> None:
    async with started(scripted_engine(spare=True)) as engine:
        process = psutil.Process(await spare_of(engine))
        await until(lambda: ignored_signals(process) >= {signal.SIGINT, signal.SIGTERM})
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert num_sockets(process) == 1
        for each in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(each)
        os.kill(pid_of(engine), signal.SIGKILL)
        await until_restarted(engine, 1)
        assert pid_of(engine) == process.pid


def num_sockets(process: psutil.Process) -> int:
    files = pathlib.Path(f"/proc/{process.pid}/fd").iterdir()
    return sum(each.readlink().name.startswith("socket:") for each in files)


def ignored_signals(process: psutil.Process) -> set[int]:
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    mask = int(next(line.split()[1] for line in lines if line.startswith("SigIgn")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


async def test_a_spare_that_cannot_be_parked_says_why_and_is_followed_by_one_that_only_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scripted engine has no weights to put to sleep."""
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    with structlog.testing.capture_logs() as logged:
        async with started(scripted_engine(spare=True, park_spare=True)) as engine:
            first = await spare_of(engine)
            second = await spare_of(engine, but=first)
            os.kill(pid_of(engine), signal.SIGKILL)
            await until_restarted(engine, 1)
            assert pid_of(engine) == second
    reasons = [each["ending"] for each in logged if each["event"] == "the spare engine process has ended"]
    assert [each for each in reasons if "did not come from a folder" in each] == reasons[:1]
