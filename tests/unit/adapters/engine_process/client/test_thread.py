from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.thread import EngineThread
from nanoserve.entrypoints.compose import engine_client as compose
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.errors import BadValueError, EngineDiedError, EngineLoadingError, ModelLoadError
from nanoserve.ports.request import FinishReason
from tests.inside import inside
from tests.patience import PATIENCE
from tests.unit.adapters.engine_process.client.engines import (
    balanced,
    expected,
    read,
    request,
    started,
    until,
)
from tests.unit.adapters.engine_process.host.scripted_host import build


def local_engine(build: Any = build, **settings: Any) -> KeptEngine[EngineThread]:
    return compose.local_engine(EngineSettings(**settings), build=build)


async def test_it_serves_as_the_remote_one_does() -> None:
    all_sent = threading.Event()

    def waiting(settings: EngineSettings, watch: Stopwatch) -> Assembly:
        assembly = build(settings, watch)
        turn = assembly.engine.turn

        def wait() -> Any:
            if "r0" in inside(assembly.engine).scheduler.table.requests:
                all_sent.wait(PATIENCE)
            return turn()

        assembly.engine.turn = wait  # type: ignore[method-assign]
        return assembly

    before = set(threading.enumerate())
    engine = local_engine(waiting, paranoid=True)
    with pytest.raises(EngineLoadingError):
        engine.submit(request("early"))
    async with started(engine):
        assert (engine.status, engine.restarts) == (EngineStatus.READY, 0)
        assert engine.facts is not None
        replies = [engine.submit(request(f"r{number}", (number, 2))) for number in range(20)]
        refused = engine.submit(request("refused", (9999,)))
        left = engine.submit(request("left", max_tokens=500))
        left.cancel()
        all_sent.set()
        for number, reply in enumerate(replies):
            assert (await read(reply)).ids == expected((number, 2))
        assert isinstance((await read(refused)).error, BadValueError)
        assert (await read(left)).reasons == {0: FinishReason.ABORT}
        engine.forget_prefixes()
        await until(lambda: engine.state and engine.state.generated_tokens >= 400)
        assert balanced(engine)
    assert engine.status is EngineStatus.STOPPED
    await until(lambda: "engine" not in {thread.name for thread in {*threading.enumerate()} - before})


async def test_a_start_that_fails_is_raised() -> None:
    engine = local_engine(model="missing")
    with pytest.raises(ModelLoadError, match="name another one"):
        await engine.start()
    assert engine.status is EngineStatus.FAILED
    await engine.stop()


async def test_a_bug_in_the_engine_ends_every_answer() -> None:
    def doomed(settings: EngineSettings, watch: Stopwatch) -> Assembly:
        assembly = build(settings, watch)
        turn = assembly.engine.turn

        def fail() -> Any:
            if "doomed" in inside(assembly.engine).scheduler.table.requests:
                raise AssertionError("the books are wrong")
            return turn()

        assembly.engine.turn = fail  # type: ignore[method-assign]
        return assembly

    async with started(local_engine(doomed)) as engine:
        other = asyncio.create_task(read(engine.submit(request("other", max_tokens=500))))
        answer = await read(engine.submit(request("doomed")))
        assert isinstance(answer.error, EngineDiedError)
        assert isinstance((await other).error, EngineDiedError)
        assert engine.status is EngineStatus.FAILED
        assert balanced(engine)
        with pytest.raises(EngineLoadingError):
            engine.submit(request("late"))


@pytest.mark.parametrize(("seconds", "status"), [(-1.0, EngineStatus.STALLED), (1e9, EngineStatus.READY)])
async def test_a_silent_engine_counts_as_stalled_until_it_reports(
    seconds: float, status: EngineStatus
) -> None:
    engine = compose.local_engine(EngineSettings(), build=build, stall_timeout=seconds)
    began = time.monotonic()
    async with started(engine):
        assert engine.status is status
        await until(lambda: engine.last_report > began)
