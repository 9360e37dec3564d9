"""The embedded model in an engine process: the same answers as offline, also after it was killed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from nanoserve.adapters.engine_process.client.remote_engine import RemoteEngine
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.sampling import SamplingParams
from tests.unit.adapters.engine_process.client.engines import read, request, run, started, until

PROMPTS = ("Once upon a time", "The cat", "A little girl found a")


@pytest.mark.slow
def test_the_embedded_model_answers_as_offline_before_and_after_a_kill(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
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

    async def work() -> None:
        engine = remote_engine(EngineSettings(threads=1))
        async with started(engine):
            assert engine.facts is not None
            assert {"imports", "weights", "tokenizer", "warm-up"} <= set(engine.facts.start_phases)
            await ask(engine, 1)
            killed = time.monotonic()
            os.kill(engine.facts.pid, signal.SIGKILL)
            await until(lambda: engine.restarts == 1)
            await ask(engine, 2)
            assert engine.status is EngineStatus.READY
            print(f"answered again {time.monotonic() - killed:.1f} s after the kill")  # noqa: T201 - for the report

    run(work())
