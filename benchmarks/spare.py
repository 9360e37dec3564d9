"""How soon an engine is back after it was killed, by a parked spare or (`--no-park`) a prepared one, and whether it answers as before.

`python -m benchmarks.spare FOLDER --deaths 20`; on a GPU, too. Each event is printed when it happens, so that a run that is cut off has said how far it came.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time

import attrs
import psutil

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.supervisor import Supervisor
from nanoserve.entrypoints.bench.report import show, table, write_report
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=3)
LOOK = 0.002
"""Seconds between two looks."""
BEGAN = time.perf_counter()


def say(what: str) -> None:
    """Print what has happened, and when."""
    print(f"{time.perf_counter() - BEGAN:8.2f} s  {what}", flush=True)


async def answer(engine: KeptEngine[Supervisor], name: str) -> list[object]:
    """The tokens of a fixed prompt with their log-probabilities."""
    found: list[object] = []
    asked = Request(request_id=name, prompt_token_ids=tuple(range(5, 37)), sampling=GREEDY)
    async for batch in engine.submit(asked).events():
        for each in batch:
            if isinstance(each, TokensGenerated):
                found += zip(each.token_ids, each.logprobs or (), strict=True)
    return found


async def wait_for_spare(engine: KeptEngine[Supervisor]) -> int:
    """The resident bytes of the spare, once it waits."""
    spare = engine.keeper.spare
    while spare._process is None or not spare._process.is_prepared:  # noqa: ASYNC110, SLF001 - nobody else asks
        await asyncio.sleep(LOOK)
    return int(psutil.Process(spare._process.pid).memory_info().rss)  # noqa: SLF001


async def kill(engine: KeptEngine[Supervisor]) -> float:
    """Seconds from a kill until the next engine is ready."""
    assert engine.facts is not None
    deaths = engine.restarts + 1
    os.kill(engine.facts.pid, signal.SIGKILL)
    began = time.perf_counter()
    while not (engine.restarts == deaths and engine.status is EngineStatus.READY):  # noqa: ASYNC110 - as above
        await asyncio.sleep(LOOK)
    return time.perf_counter() - began


async def measure(arguments: argparse.Namespace) -> None:
    """Kill, compare, print and write."""
    given = {name: getattr(arguments, name) for name in ("model", "device", "dtype", "max_model_len")}
    settings = read_configuration(given, os.environ).engine
    engine = remote_engine(attrs.evolve(settings, park_spare=not arguments.no_park), spare=True)
    await engine.start()
    try:
        async with asyncio.timeout(arguments.patience):
            first, equal = await answer(engine, "first"), 0
        say("the first engine has answered")
        parked, back, answered, memory = [], [], [], []
        for death in range(arguments.deaths):
            async with asyncio.timeout(arguments.patience):
                began = time.perf_counter()
                memory.append(await wait_for_spare(engine))
                parked.append(time.perf_counter() - began)
                say(
                    f"a spare waits, after {parked[-1]:.2f} s, with {memory[-1] >> 20} MiB of its own or shared"
                )
                back.append(await kill(engine))
                say(f"killed, and back after {back[-1]:.3f} s; of these {_phases(engine)}")
                began = time.perf_counter()
                equal += await answer(engine, f"after {death}") == first
                answered.append(time.perf_counter() - began)
                say(f"answered after {answered[-1]:.3f} s; {equal} of {death + 1} answers are equal")
    finally:
        await engine.stop()
    rows = {
        "seconds until the next spare waits": _seconds(parked),
        "seconds until the engine is back": _seconds(back),
        "seconds of the first answer then": _seconds(answered),
        "answers with equal tokens and log-probabilities": f"{equal} of {arguments.deaths}",
        "the spare's resident MiB: least, most": f"{min(memory) >> 20}, {max(memory) >> 20}",
    }
    show(table(["", ""], list(rows.items())))
    write_report(arguments.json, {"benchmark": "spare", "rows": rows})


def _phases(engine: KeptEngine[Supervisor]) -> str:
    """The parts of the last start, in seconds."""
    assert engine.facts is not None
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in engine.facts.start_phases.items())


def _seconds(found: list[float]) -> str:
    return f"median {statistics.median(found):.3f}, longest {max(found):.3f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder or a hub name; the built-in model if left out")
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that one death may take")
    parser.add_argument("--no-park", action="store_true", help="have a spare that only imports")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(measure(_arguments()))
    except TimeoutError:
        raise SystemExit("spare: nothing more has happened for too long") from None
    except NanoserveError as error:
        raise SystemExit(f"spare: {error}") from None
