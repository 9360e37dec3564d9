"""What the control plane costs: plan and commit time of steady decode steps, over a runner that computes nothing.

    python -m benchmarks.control_plane [--steps N]

Prints a table: rows in the batch, requests waiting, then median and mean microseconds of `Scheduler.plan`, of
`Scheduler.commit`, and of a whole `Engine.turn` (plan, commit, and one event per token, without text).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from rich.console import Console
from rich.table import Table

from nanoserve.adapters.scripted.constant_runner import ConstantRunner
from nanoserve.adapters.system.clock import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

BLOCK_SIZE = 16
VOCAB = 128_256


def build_engine(rows: int, waiting: int, steps: int) -> Engine[int]:
    """An engine with `rows` sequences in steady decode, at spread positions, and `waiting` more in the queue."""
    length = 64 + 3 * steps
    limits = Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        max_model_len=length + 64,
        vocab_size=VOCAB,
        block_size=BLOCK_SIZE,
        num_blocks=rows * (length // BLOCK_SIZE + 8),
    )
    engine = Engine(
        limits=limits, cache_groups=(CacheGroup(layers=(0,)),), runner=ConstantRunner(7), clock=SystemClock()
    )
    params = SamplingParams(max_tokens=length)
    for number in range(rows + waiting):
        prompt = tuple((number * 7919 + place * 31) % VOCAB for place in range(48 + number % BLOCK_SIZE))
        request = Request(
            request_id=str(number), prompt_token_ids=prompt, sampling=params, eos_token_ids=frozenset({2})
        )
        engine.add(request)
    while len(engine.scheduler.decoding) < rows:
        engine.turn()
    return engine


def measure(engine: Engine[int], steps: int) -> tuple[list[float], list[float], list[float]]:
    """Microseconds of plan, commit, and whole turns."""
    scheduler, runner = engine.scheduler, ConstantRunner(7)
    plans, commits, turns = [], [], []
    for _ in range(steps):
        began = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        assert plan is not None
        result = runner.collect(runner.submit(plan))
        ready = time.perf_counter()
        scheduler.commit(result)
        done = time.perf_counter()
        plans.append((planned - began) * 1e6)
        commits.append((done - ready) * 1e6)
    for _ in range(steps):
        began = time.perf_counter()
        engine.turn()
        turns.append((time.perf_counter() - began) * 1e6)
    return plans, commits, turns


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=320, help="steps measured for each row of the table")
    steps = parser.parse_args().steps
    columns = ("rows", "waiting", "plan median", "plan mean", "commit median", "commit mean", "turn median")
    table = Table(*columns, title="control plane, us per steady decode step")
    for rows in (64, 256, 1024):
        for waiting in (0, 100_000):
            engine = build_engine(rows, waiting, steps)
            gc.collect()
            gc.freeze()
            plans, commits, turns = measure(engine, steps)
            figures = [statistics.median(plans), statistics.fmean(plans), statistics.median(commits)]
            figures += [statistics.fmean(commits), statistics.median(turns)]
            table.add_row(f"{rows:,}", f"{waiting:,}", *(f"{figure:.1f}" for figure in figures))
            gc.unfreeze()
    Console().print(table)


if __name__ == "__main__":
    main()
