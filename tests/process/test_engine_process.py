"""The embedded model in an engine process: the same answers as offline, also after it was killed and its spare took over."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import psutil
import pytest

from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.sampling import SamplingParams
from tests.patience import wait_until
from tests.process.command import run
from tests.process.server_process import ServerProcess, server_process
from tests.unit.adapters.engine_process.client.engines import (
    RemoteEngine,
    is_alive,
    pid_of,
    read,
    request,
    started,
    until,
    until_restarted,
)

PROMPTS = ("Once upon a time", "The cat", "A little girl found a")
PREPARED = """
import os, sys
from nanoserve.entrypoints.compose.bootstrap import assemble, preload
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.adapters.engine_process.host.process import warm_up

preload()
import pathlib, torch
assert not torch.cuda.is_initialized()
assert not [each for each in pathlib.Path("/proc/self/fd").iterdir() if "nvidia" in os.path.realpath(each)]
before = set(sys.modules)
warm_up(assemble(EngineSettings(threads=1)).engine)
print(*sorted(set(sys.modules) - before))
"""


async def test_the_embedded_model_answers_as_offline_before_and_after_a_kill() -> None:
    """In float32, so that it makes no difference which of the requests come in time for the same step."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with LLM(threads=1, dtype="float32") as llm:
        offline = llm.generate(list(PROMPTS), params, use_tqdm=False)

    async def ask(engine: RemoteEngine, attempt: int) -> None:
        asked = {
            f"{attempt}-{number}": request(
                f"{attempt}-{number}", tuple(output.prompt_token_ids), max_tokens=24, ignore_eos=True
            )
            for number, output in enumerate(offline)
        }
        replies = [engine.submit(each) for each in asked.values()]
        for reply, output in zip(replies, offline, strict=True):
            answer = await read(reply)
            assert answer.ids == output.outputs[0].token_ids
            assert answer.texts[0] == output.outputs[0].text

    engine = remote_engine(EngineSettings(threads=1, dtype="float32"), spare=True)
    others = {each.pid for each in psutil.Process().children()}
    async with started(engine):
        assert engine.facts is not None
        assert {"imports", "weights", "tokenizer", "warm-up"} <= set(engine.facts.start_phases)
        await ask(engine, 0)
        others.add(pid_of(engine))
        await until(lambda: {each.pid for each in psutil.Process().children()} - others)
        [spare] = {each.pid for each in psutil.Process().children()} - others
        os.kill(pid_of(engine), signal.SIGKILL)
        await until_restarted(engine, 1)
        assert pid_of(engine) == spare
        await ask(engine, 1)


async def scores(engine: RemoteEngine, name: str) -> list[object]:
    """Tokens and their log-probabilities, as they came."""
    found: list[object] = []
    async for batch in engine.submit(request(name, (5, 6, 7, 8), ignore_eos=True, logprobs=3)).events():
        for each in batch:
            if isinstance(each, TokensGenerated):
                assert each.logprobs
                found += zip(each.token_ids, each.logprobs, strict=True)
    return found


async def parked(engine: RemoteEngine) -> int:
    """The process id of the spare, once it sleeps."""
    spare = engine.keeper.spare
    await until(lambda: spare._process is not None and spare._process.is_prepared, "a parked spare")
    assert spare._process is not None
    return spare._process.pid


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


@pytest.mark.parametrize("deaths", [1, pytest.param(20, marks=pytest.mark.slow)])
async def test_a_parked_spare_answers_the_same_bits_and_another_one_is_begun_behind_it(deaths: int) -> None:
    settings = EngineSettings(park_spare=True, max_model_len=256, kv_memory=16 << 20)
    memory: list[int] = []
    async with started(remote_engine(settings, spare=True)) as engine:
        assert engine.facts is not None
        first, blocks = await scores(engine, "first"), engine.facts.num_blocks
        for death in range(1, deaths + 1):
            spare = await parked(engine)
            memory.append(resident(spare))
            held = engine.submit(request(f"held-{death}", (5, 6, 7), stream=False))
            os.kill(pid_of(engine), signal.SIGKILL)
            await until_restarted(engine, death)
            assert pid_of(engine) == spare
            assert list(engine.facts.start_phases) == ["waking weights", "waking kv_cache"]
            assert engine.facts.num_blocks == blocks
            assert len((await read(held)).ids) == 20
            assert await scores(engine, f"after-{death}") == first
            another = engine.keeper.spare._process
            assert another is not None
            assert another.pid != spare
    assert max(memory) < 1.1 * min(memory)


def test_a_prepared_process_has_next_to_nothing_left_to_import_and_touches_no_gpu() -> None:
    done = run(command=(sys.executable, "-c", PREPARED))
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.split()) < 10, "hundreds, where transformers is still to be imported"


def processes(server: ServerProcess) -> list[int]:
    """The living engine and spare, the older one first."""
    found = sorted(server.children(), key=psutil.Process.create_time)
    return [each.pid for each in found if is_alive(each.pid)]


def test_a_server_that_is_stopped_takes_a_later_spare_along(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, "--threads", "1", extra={"NANOSERVE_SPARE": "true"}) as server:
        server.wait_until_ready()
        wait_until(lambda: len(processes(server)) == 2)
        engine, spare = processes(server)
        os.kill(engine, signal.SIGKILL)
        server.wait_for_line("the engine is back")
        wait_until(lambda: len(processes(server)) == 2)
        took_over, new = processes(server)
        assert took_over == spare
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        wait_until(lambda: not is_alive(took_over) and not is_alive(new))


def test_a_server_that_is_killed_takes_its_spare_along(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, "--threads", "1", extra={"NANOSERVE_SPARE": "true"}) as server:
        wait_until(lambda: len(processes(server)) == 2)
        both = processes(server)
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(is_alive, both)))


def test_a_server_of_one_process_starts_no_engine_and_no_spare(tmp_path: pathlib.Path) -> None:
    arguments = ("--threads", "1", "--in-process")
    with server_process(tmp_path, *arguments, extra={"NANOSERVE_SPARE": "true"}) as server:
        server.wait_until_ready()
        with server.client() as client:
            answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert answer.status_code == 200
        assert processes(server) == []
