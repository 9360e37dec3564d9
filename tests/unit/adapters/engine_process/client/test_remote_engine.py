"""An engine in a real process: what it answers, and how its clients are served while it comes and goes."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import stat
import time
from typing import Any

import psutil
import pytest
import uvloop

from nanoserve.adapters.engine_process.client.remote_engine import RemoteEngine
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.errors import (
    BadValueError,
    EngineLoadingError,
    ModelLoadError,
    NanoserveError,
    PromptTooLongError,
)
from nanoserve.ports.request import FinishReason
from tests.unit.adapters.engine_process.client.engines import (
    PATIENCE,
    Answer,
    balanced,
    expected,
    is_alive,
    pid_of,
    read,
    request,
    run,
    scripted_engine,
    started,
    until,
    until_restarted,
)
from tests.unit.adapters.engine_process.host.scripted_host import RAISER


def descriptor(process: psutil.Process, number: int) -> tuple[pathlib.Path, int]:
    """What a file descriptor stands for, and its permissions."""
    entry = pathlib.Path(f"/proc/{process.pid}/fd/{number}")
    return entry.readlink(), stat.S_IMODE(entry.stat().st_mode)


async def serve_forty(engine: RemoteEngine) -> None:
    async with started(engine):
        began = time.monotonic()
        prompts = {f"r{number}": (number, 7, number) for number in range(40)}
        replies = [engine.submit(request(name, prompt)) for name, prompt in prompts.items()]
        answers = await asyncio.gather(*(read(reply) for reply in replies))
        assert [answer.ids for answer in answers] == [expected(prompt) for prompt in prompts.values()]
        assert all(answer.reads > 5 for answer in answers)
        await until(lambda: engine.state is not None and engine.state.generated_tokens == 800)
        state = engine.state
        assert state is not None
        assert (state.accepted, state.finished["length"], state.running, state.waiting) == (40, 40, 0, 0)
        assert (state.free_blocks, state.leaked_blocks) == (4096, 0)
        assert engine.last_report > began, "the engine says when it is well, and has since"
        assert (engine.status, engine.restarts) == (EngineStatus.READY, 0)
    assert engine.status is EngineStatus.STOPPED


def test_many_requests_are_answered() -> None:
    run(serve_forty(scripted_engine(paranoid=True)))


def test_under_uvloop_too() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(serve_forty(scripted_engine()), 2 * PATIENCE))


async def test_unstreamed_answers_equal_streamed_ones() -> None:
    engine = scripted_engine()
    async with started(engine):
        one, two = (engine.submit(request(str(stream), n=2, stream=stream)) for stream in (True, False))
        streamed, whole = await asyncio.gather(read(one), read(two))
    assert (streamed.token_ids, streamed.texts) == (whole.token_ids, whole.texts)
    assert (whole.reads, streamed.reads > 5) == (1, True)


async def test_what_the_engine_refuses_is_raised_to_its_caller_alone() -> None:
    engine = scripted_engine()
    async with started(engine):
        long = engine.submit(request("long", (1,) * 600))
        outside = engine.submit(request("outside", (9999,)))
        unreadable = engine.submit(request("unreadable", (1.5,)))  # type: ignore[arg-type]
        unsendable = engine.submit(request("\ud800"))
        good = engine.submit(request("good"))
        assert isinstance((await read(long)).error, PromptTooLongError)
        for reply in (outside, unreadable, unsendable):
            assert isinstance((await read(reply)).error, BadValueError)
        assert (await read(good)).ids == expected((1, 2, 3))
        assert balanced(engine)


async def test_a_cancelled_request_stops_computing() -> None:
    engine = scripted_engine()
    async with started(engine):
        replies = [engine.submit(request(f"r{number}", (number, 1), max_tokens=500)) for number in range(20)]
        for reply in replies:
            await anext(aiter(reply.events()))
        for reply in replies:
            reply.cancel()
        await until(lambda: engine.state and engine.state.running == engine.state.waiting == 0)
        await until(lambda: engine.state and engine.state.free_blocks == 4096)
        assert engine.state is not None
        assert engine.state.finished["abort"] == 20
        assert engine.state.steps < 400
        assert (await read(replies[0])).reasons == {0: FinishReason.ABORT}


async def test_a_reader_that_reads_nothing_costs_its_neighbours_nothing() -> None:
    engine = scripted_engine()
    async with started(engine):
        slow = engine.submit(request("slow", max_tokens=200))
        assert (await read(engine.submit(request("quick", (4, 5), max_tokens=300)))).ids == expected(
            (4, 5), 300
        )
        answer = await read(slow)
        assert answer.ids == expected((1, 2, 3), 200)
        assert answer.reads <= 2


async def test_forgotten_prefixes_are_not_found_again() -> None:
    engine = scripted_engine()
    prompt = tuple(range(40))
    async with started(engine):
        await read(engine.submit(request("first", prompt)))
        await read(engine.submit(request("second", prompt)))
        engine.forget_prefixes()
        await read(engine.submit(request("third", prompt)))
        await until(lambda: engine.state and engine.state.prefix_queries == 120)
        assert engine.state is not None
        assert engine.state.prefix_hits == 36


async def lose_an_engine(engine: RemoteEngine, kill: Any) -> tuple[dict[str, Answer], float]:
    """Fifty streams, eight of them running, when the engine is lost; returns what became of them, and the downtime."""
    answers = {f"r{number}": Answer() for number in range(50)}
    replies = [
        engine.submit(request(name, (number, 9), max_tokens=80)) for number, name in enumerate(answers)
    ]
    reading = [asyncio.create_task(read(*each)) for each in zip(replies, answers.values(), strict=True)]
    await until(lambda: sum(bool(answer.ids) for answer in answers.values()) >= 8, "output")
    kill(pid_of(engine))
    await until(lambda: engine.status is not EngineStatus.READY, "the loss")
    lost = time.monotonic()
    while engine.status is not EngineStatus.READY:
        assert balanced(engine)
        await asyncio.sleep(0.01)
    downtime = time.monotonic() - lost
    await asyncio.gather(*reading)
    return answers, downtime


def check_outcome(engine: RemoteEngine, answers: dict[str, Answer]) -> None:
    """Those that had been given output ended with an error, all others are complete, and the ledger says so."""
    lost = [answer for answer in answers.values() if answer.error]
    assert 8 <= len(lost) <= 16
    assert {type(answer.error).__name__ for answer in lost} == {"EngineDiedError"}
    assert all(answer.ids for answer in lost)
    for number, answer in enumerate(answers.values()):
        if answer.error is None:
            assert answer.ids == expected((number, 9), 80)
        else:
            assert answer.ids == expected((number, 9), 80)[: len(answer.ids)]
    assert balanced(engine)
    assert engine.state is not None
    assert engine.state.finished["error"] == len(lost)
    assert engine.state.finished["length"] == 50 - len(lost)
    assert engine.restarts == 1


async def test_a_killed_engine_is_back_and_what_had_sent_nothing_is_answered() -> None:
    engine = scripted_engine(max_num_seqs=8)
    async with started(engine):
        answers, downtime = await lose_an_engine(engine, lambda pid: os.kill(pid, signal.SIGKILL))
        check_outcome(engine, answers)
        print(f"killed: back after {downtime:.2f} s")  # noqa: T201 - a number to read in the report


async def test_a_frozen_engine_is_replaced() -> None:
    engine = scripted_engine(max_num_seqs=8, stall_timeout=2.0)
    async with started(engine):
        frozen = pid_of(engine)
        answers, downtime = await lose_an_engine(engine, lambda pid: os.kill(pid, signal.SIGSTOP))
        check_outcome(engine, answers)
        assert not is_alive(frozen)
        print(f"frozen: back {downtime:.2f} s after it was noticed")  # noqa: T201 - as above


async def test_an_idle_engine_that_freezes_is_replaced_too() -> None:
    engine = scripted_engine(stall_timeout=2.0)
    async with started(engine):
        await read(engine.submit(request("before")))
        await until(lambda: engine.state and engine.state.generated_tokens == 20)
        os.kill(pid_of(engine), signal.SIGSTOP)
        await until_restarted(engine, 1)
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))
        await until(lambda: engine.state and engine.state.generated_tokens == 40)


async def test_an_idle_engine_is_left_alone() -> None:
    engine = scripted_engine(stall_timeout=2.0)
    async with started(engine):
        await asyncio.sleep(3.0)
        assert (engine.status, engine.restarts) == (EngineStatus.READY, 0)


async def test_an_engine_that_turns_without_computing_is_replaced() -> None:
    engine = scripted_engine(stall_timeout=2.0)
    async with started(engine):
        answer = await read(engine.submit(request("spin")))
        assert "twice" in str(answer.error)
        assert engine.restarts == 2


async def test_a_stuck_step_shows_its_stack_and_costs_only_those_it_must(
    capfd: pytest.CaptureFixture[str],
) -> None:
    engine = scripted_engine(stall_timeout=2.0)
    async with started(engine):
        bystander = asyncio.create_task(read(engine.submit(request("bystander", (5, 6), max_tokens=400))))
        await asyncio.sleep(0)
        stuck = await read(engine.submit(request("stuck", (501,))))
        assert "twice" in str(stuck.error)
        assert (await bystander).error is not None
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))
        assert engine.restarts == 2
    dump = capfd.readouterr().err
    assert "in hang" in dump
    assert "scripted_host.py" in dump


async def test_a_request_that_kills_engines_ends_with_an_error_and_spares_the_third() -> None:
    engine = scripted_engine()
    async with started(engine):
        await read(engine.submit(request("before")))
        poison = await read(engine.submit(request("poison", (500, 1))))
        assert type(poison.error).__name__ == "EngineDiedError"
        assert poison.ids == []
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))
        assert engine.restarts == 2
        assert balanced(engine)


async def test_a_bug_in_the_control_plane_ends_the_engine_which_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    engine = scripted_engine()
    async with started(engine):
        assert "twice" in str((await read(engine.submit(request("bug")))).error)
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))
        assert engine.restarts == 2
    assert "the books are wrong" in "".join(capfd.readouterr())


async def test_a_step_that_raises_costs_the_guilty_request_only() -> None:
    engine = scripted_engine()
    async with started(engine):
        pid = pid_of(engine)
        good = [engine.submit(request(f"r{number}", (number, 3), max_tokens=60)) for number in range(20)]
        await asyncio.sleep(0.05)
        bad = await read(engine.submit(request("bad", (RAISER, 1))))
        assert bad.reasons == {0: FinishReason.ERROR}
        for number, answer in enumerate(await asyncio.gather(*(read(reply) for reply in good))):
            assert answer.ids == expected((number, 3), 60)
        assert (engine.restarts, pid_of(engine)) == (0, pid)
        assert balanced(engine)


async def test_requests_are_taken_while_the_engine_restarts_and_time_out_as_always() -> None:
    engine = scripted_engine(model="slow")
    async with started(engine):
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: engine.status is EngineStatus.RESTARTING)
        waiting = engine.submit(request("waiting"))
        left = engine.submit(request("left"))
        late = engine.submit(request("late", deadline=time.monotonic() + 0.01))
        left.cancel()
        assert (await read(left)).reasons == {0: FinishReason.ABORT}
        assert (await read(late)).reasons == {0: FinishReason.TIMEOUT}
        assert engine.status is EngineStatus.RESTARTING
        assert (await read(waiting)).ids == expected((1, 2, 3))
        assert balanced(engine)


async def test_our_own_sleep_does_not_cost_the_engine_its_life() -> None:
    engine = scripted_engine(stall_timeout=2.0)
    async with started(engine):
        reply = engine.submit(request("r", max_tokens=300))
        await anext(aiter(reply.events()))
        time.sleep(4.0)  # noqa: ASYNC251 - the loop must not run
        assert len((await read(reply)).ids) > 100
        assert engine.restarts == 0


async def test_an_engine_that_keeps_dying_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoserve.adapters.engine_process.client.supervision.MOST_DEATHS", 3)
    engine = scripted_engine()
    async with started(engine):
        waiting: list[asyncio.Task[Answer]] = []
        for death in range(3):
            await until_restarted(engine, death)
            os.kill(pid_of(engine), signal.SIGKILL)
            await until(lambda: engine.status is not EngineStatus.READY)
            if death < 2:
                waiting.append(asyncio.create_task(read(engine.submit(request(f"r{death}", max_tokens=500)))))
                await asyncio.sleep(0)
        await until(lambda: engine.status is EngineStatus.FAILED)
        assert all(answer.error for answer in await asyncio.gather(*waiting))
        with pytest.raises(EngineLoadingError):
            engine.submit(request("late"))
        assert balanced(engine)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("missing", ModelLoadError, "there is no such model; name another one"),
        ("buggy", NanoserveError, "RuntimeError: a bug in the start"),
        ("mortal", NanoserveError, "SIGKILL"),
    ],
)
async def test_a_first_start_that_fails_says_why_and_is_not_tried_again(
    model: str, error: type[NanoserveError], message: str
) -> None:
    engine = scripted_engine(model=model)
    with pytest.raises(EngineLoadingError):
        engine.submit(request("early"))
    with pytest.raises(error, match=message):
        await engine.start()
    assert (engine.status, engine.restarts, engine.facts) == (EngineStatus.FAILED, 0, None)
    with pytest.raises(EngineLoadingError):
        engine.submit(request("late"))
    await engine.stop()


async def test_a_program_that_cannot_be_started_is_an_error_too() -> None:
    engine = scripted_engine(command=("/nowhere/at/all",))
    with pytest.raises(NanoserveError, match="could not be started"):
        await engine.start()
    await engine.stop()


async def test_stopping_ends_the_process_and_every_answer() -> None:
    engine = scripted_engine()
    await engine.start()
    pid = pid_of(engine)
    reading = asyncio.create_task(read(engine.submit(request("r", max_tokens=500))))
    await asyncio.sleep(0.05)
    await engine.stop()
    assert type((await reading).error).__name__ == "EngineDiedError"
    assert not is_alive(pid)
    await engine.stop()
    assert engine.status is EngineStatus.STOPPED


async def test_stopping_while_it_starts_ends_the_process() -> None:
    engine = scripted_engine()
    before = {child.pid for child in psutil.Process().children()}
    starting = asyncio.create_task(engine.start())
    await until(lambda: {child.pid for child in psutil.Process().children()} - before)
    [pid] = {child.pid for child in psutil.Process().children()} - before
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await engine.stop()
    assert not is_alive(pid)


async def test_the_process_keeps_its_secrets_and_listens_to_nobody_else() -> None:
    engine = scripted_engine(model="a-secret-model")
    async with started(engine):
        process = psutil.Process(pid_of(engine))
        assert "secret" not in " ".join(process.cmdline())
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert [each for each in process.net_connections("all") if each.status == psutil.CONN_LISTEN] == []
        assert all(not each.laddr for each in process.net_connections("unix"))
        assert descriptor(process, 0) == (pathlib.Path("/dev/null"), 0o666)
        connection, mode = descriptor(process, int(process.cmdline()[-1]))
        assert connection.name.startswith("socket:")
        assert mode == 0o600
        for each in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(each)
        assert (await read(engine.submit(request("r")))).ids == expected((1, 2, 3))
        assert engine.restarts == 0
