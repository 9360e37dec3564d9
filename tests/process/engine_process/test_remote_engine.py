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

from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.errors import (
    BadValueError,
    EngineLoadingError,
    ModelLoadError,
    NanoserveError,
    PromptTooLongError,
)
from nanoserve.ports.request import TRIED, FinishReason
from tests.patience import PATIENCE
from tests.process.engine_process.hand_watch import HandWatch, replace_stuck
from tests.unit.adapters.engine_process.client.engines import (
    Answer,
    RemoteEngine,
    balanced,
    expected,
    is_alive,
    pid_of,
    read,
    request,
    scripted_engine,
    started,
    until,
    until_restarted,
)
from tests.unit.adapters.engine_process.host.scripted_host import KILLER, LATE, RAISER, SLOW


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
        await until(lambda: engine.state is not None and engine.state.generated_tokens == 800)
        state = engine.state
        assert state is not None
        assert (state.accepted, state.finished["length"], state.running, state.waiting) == (40, 40, 0, 0)
        assert (state.free_blocks, state.leaked_blocks) == (4096, 0)
        assert engine.last_report > began, "the engine says when it is well, and has since"
        assert (engine.status, engine.restarts) == (EngineStatus.READY, 0)
    assert engine.status is EngineStatus.STOPPED


async def test_many_requests_are_answered() -> None:
    await serve_forty(scripted_engine(paranoid=True))


def test_under_uvloop_too() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(serve_forty(scripted_engine()), 2 * PATIENCE))


async def test_what_cannot_be_served_costs_its_caller_alone() -> None:
    async with started(scripted_engine()) as engine:
        pid = pid_of(engine)
        long = engine.submit(request("long", (1,) * 600))
        outside = engine.submit(request("outside", (9999,)))
        unreadable = engine.submit(request("unreadable", (1.5,)))  # type: ignore[arg-type]
        unsendable = engine.submit(request("\ud800"))
        good = [engine.submit(request(f"r{number}", (number, 3), max_tokens=60)) for number in range(20)]
        failing = engine.submit(request("failing", (RAISER, 1)))
        assert isinstance((await read(long)).error, PromptTooLongError)
        for reply in (outside, unreadable, unsendable):
            assert isinstance((await read(reply)).error, BadValueError)
        assert (await read(failing)).reasons == {0: FinishReason.ERROR}
        for number, answer in enumerate(await asyncio.gather(*(read(reply) for reply in good))):
            assert answer.ids == expected((number, 3), 60)
        assert (engine.restarts, pid_of(engine)) == (0, pid)
        assert balanced(engine)


async def test_a_cancelled_request_stops_computing() -> None:
    async with started(scripted_engine()) as engine:
        replies = [
            engine.submit(request(f"r{number}", (number, SLOW), max_tokens=500)) for number in range(20)
        ]
        for reply in replies:
            await anext(aiter(reply.events()))
        for reply in replies:
            reply.cancel()
        await until(lambda: engine.state and engine.state.running == engine.state.waiting == 0)
        await until(lambda: engine.state and engine.state.free_blocks == 4096)
        assert engine.state is not None
        assert engine.state.finished["abort"] == 20
        assert (await read(replies[0])).reasons == {0: FinishReason.ABORT}


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_engine_is_replaced_and_every_answer_goes_on(
    number: signal.Signals, hand_watch: type[HandWatch]
) -> None:
    """Fifty streams, eight of them running, when the engine is killed, or frozen."""
    async with started(scripted_engine(max_num_seqs=8)) as engine:
        answers = {f"r{number}": Answer() for number in range(50)}
        replies = [
            engine.submit(request(name, (number, 9), max_tokens=80)) for number, name in enumerate(answers)
        ]
        reading = [asyncio.create_task(read(*each)) for each in zip(replies, answers.values(), strict=True)]
        await until(lambda: any(answer.ids for answer in answers.values()), "output")
        lost = pid_of(engine)
        os.kill(lost, number)
        if number is signal.SIGSTOP:
            await replace_stuck(engine, hand_watch)
        await until_restarted(engine, 1)
        assert not is_alive(lost)
        await asyncio.gather(*reading)
        check_outcome(engine, list(answers.values()))


def check_outcome(engine: RemoteEngine, answers: list[Answer]) -> None:
    """All are complete, token for token and in their text, and the ledger says so."""
    for number, answer in enumerate(answers):
        whole = expected((number, 9), 80)
        assert answer.ids == whole
        assert answer.texts[0] == "".join(f"{token} " for token in whole)
    assert balanced(engine)
    assert engine.state is not None
    assert engine.state.finished["length"] == 50


async def test_progress_is_what_was_computed_or_having_nothing_to_do(hand_watch: type[HandWatch]) -> None:
    async with started(scripted_engine()) as engine:
        await until(lambda: hand_watch.progress > 3, "signs of life of an idle engine")
        await read(engine.submit(request("before")))
        spinning = asyncio.create_task(read(engine.submit(request("spin"))))
        await reports(engine, 2)
        before = hand_watch.progress
        await reports(engine, 3)
        assert hand_watch.progress == before, "turns that compute nothing"
        for _ in range(2):
            await until(lambda: engine.status is EngineStatus.READY)
            await replace_stuck(engine, hand_watch)
        assert "twice" in str((await spinning).error)
        await until_restarted(engine, 2)
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))


async def reports(engine: RemoteEngine, count: int) -> None:
    for _ in range(count):
        last = engine.last_report
        await until(lambda last=last: engine.last_report > last)  # type: ignore[misc]


async def test_a_stuck_step_shows_its_stack(
    hand_watch: type[HandWatch], capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def hangs() -> bool:
        said.append(capfd.readouterr().err)
        return "the step hangs" in said[-1]

    async with started(scripted_engine()) as engine:
        stuck = asyncio.create_task(read(engine.submit(request("stuck", (501,)))))
        for _ in range(2):
            await until(hangs)
            await replace_stuck(engine, hand_watch)
        assert "twice" in str((await stuck).error)
    dump = "".join([*said, capfd.readouterr().err])
    assert dump.count("in hang") == 2
    assert "scripted_host.py" in dump


async def test_a_request_that_kills_engines_ends_with_an_error_and_spares_the_third() -> None:
    async with started(scripted_engine()) as engine:
        await read(engine.submit(request("before")))
        poison = await read(engine.submit(request("poison", (500, 1))))
        assert type(poison.error).__name__ == "EngineDiedError"
        assert poison.ids == []
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))
        assert engine.restarts == 2
        assert balanced(engine)


async def test_a_request_that_kills_engines_takes_nobody_along() -> None:
    """Three run beside it, and eight wait: none of them was computed in both of the steps that it killed."""
    async with started(scripted_engine(max_num_seqs=4, paranoid=True)) as engine:
        prompts = {f"r{number}": (number, 9) for number in range(11)}
        prompts = dict(list(prompts.items())[:3]) | {"poison": (KILLER, 1)} | prompts
        replies = {
            name: engine.submit(request(name, prompt, stream=False)) for name, prompt in prompts.items()
        }
        answers = dict(
            zip(replies, await asyncio.gather(*(read(reply) for reply in replies.values())), strict=True)
        )
        assert type(answers.pop("poison").error).__name__ == "EngineDiedError"
        assert {name: answer.ids for name, answer in answers.items()} == {
            name: expected(prompts[name]) for name in answers
        }
        assert engine.restarts == 2
        assert balanced(engine)


@pytest.mark.parametrize(("stream", "deaths"), [(True, 2), (False, 3)])
async def test_a_request_that_kills_engines_late_takes_nobody_along(*, stream: bool, deaths: int) -> None:
    """It is tried alone where the engine died over it; where that was is not known of an answer in one before a second engine has computed it."""
    async with started(scripted_engine(max_num_seqs=4, paranoid=True)) as engine:
        prompts = {f"r{number}": (number, 9) for number in range(3)} | {"poison": (LATE, 1)}
        how: dict[str, Any] = {"max_tokens": 80, "stream": stream}
        replies = [engine.submit(request(name, each, **how)) for name, each in prompts.items()]
        *answers, poison = await asyncio.gather(*map(read, replies))
        assert ("twice" if stream else "3 times") in str(poison.error)
        assert len(poison.ids) > TRIED
        assert [each.ids for each in answers] == [expected((number, 9), 80) for number in range(3)]
        assert engine.restarts == deaths
        assert balanced(engine)


async def test_what_waits_outlives_any_number_of_engines_that_others_kill() -> None:
    """One row, which poisons take one after the other, each in two engines."""
    async with started(scripted_engine(max_num_seqs=1)) as engine:
        poisons = [engine.submit(request(f"poison-{number}", (KILLER, number))) for number in range(2)]
        waiting = [engine.submit(request(f"r{number}", (number, 9))) for number in range(3)]
        for poison in poisons:
            assert type((await read(poison)).error).__name__ == "EngineDiedError"
        for number, reply in enumerate(waiting):
            assert (await read(reply)).ids == expected((number, 9))
        assert engine.restarts == 4


async def test_a_bug_in_the_control_plane_ends_the_engine_which_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with started(scripted_engine()) as engine:
        assert "twice" in str((await read(engine.submit(request("bug")))).error)
        assert (await read(engine.submit(request("after")))).ids == expected((1, 2, 3))
        assert engine.restarts == 2
    assert "the books are wrong" in "".join(capfd.readouterr())


async def test_requests_are_taken_while_the_engine_restarts_and_time_out_as_always(
    tmp_path: pathlib.Path,
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with started(scripted_engine(model=f"gate:{gate}")) as engine:
        gate.unlink()
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: engine.status is EngineStatus.RESTARTING)
        waiting = engine.submit(request("waiting"))
        left = engine.submit(request("left"))
        late = engine.submit(request("late", deadline=time.monotonic() + 0.01))
        left.cancel()
        assert (await read(left)).reasons == {0: FinishReason.ABORT}
        assert (await read(late)).reasons == {0: FinishReason.TIMEOUT}
        assert engine.status is EngineStatus.RESTARTING
        gate.touch()
        assert (await read(waiting)).ids == expected((1, 2, 3))
        assert balanced(engine)


async def test_an_engine_that_keeps_dying_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoserve.adapters.engine_process.client.supervisor.MOST_DEATHS", 3)
    async with started(scripted_engine()) as engine:
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
    ("options", "error", "message"),
    [
        ({"model": "missing"}, ModelLoadError, "there is no such model; name another one"),
        ({"model": "buggy"}, NanoserveError, "RuntimeError: a bug in the start"),
        ({"model": "mortal"}, NanoserveError, "SIGKILL"),
        ({"command": ("/nowhere/at/all",)}, NanoserveError, "could not be started"),
    ],
)
async def test_a_first_start_that_fails_says_why_and_is_not_tried_again(
    options: dict[str, Any], error: type[NanoserveError], message: str
) -> None:
    engine = scripted_engine(**options)
    with pytest.raises(EngineLoadingError):
        engine.submit(request("early"))
    with pytest.raises(error, match=message):
        await engine.start()
    assert (engine.status, engine.restarts, engine.facts) == (EngineStatus.FAILED, 0, None)
    with pytest.raises(EngineLoadingError):
        engine.submit(request("late"))
    await engine.stop()


async def test_stopping_ends_the_process_and_every_answer() -> None:
    engine = scripted_engine()
    await engine.start()
    pid = pid_of(engine)
    reading = asyncio.create_task(read(engine.submit(request("r", (SLOW,), max_tokens=500))))
    await asyncio.sleep(0)
    await engine.stop()
    assert type((await reading).error).__name__ == "DrainingError"
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


async def test_the_process_shows_no_secret_and_listens_on_no_port() -> None:
    async with started(scripted_engine(model="a-secret-model")) as engine:
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
