"""What the control plane costs: plan and commit time of steady decode steps, over a runner that computes nothing.

    python -m benchmarks.control_plane [--steps N]

Prints a table: rows in the batch, requests waiting, then median and mean microseconds of `Scheduler.plan`, of
`Scheduler.commit`, and of a whole `Engine.turn`: not streamed, streamed (one event per token) with token ids only, and
streamed with text by the embedded model's tokenizer.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.constant_runner import ConstantRunner

BLOCK_SIZE = 16
VOCAB = 4096
GROUPS = (CacheGroup(layers=(0,)),)


class CountingRunner:
    """Computes nothing; its tokens go through the vocabulary, so that texts differ from row to row and step to step."""

    def submit(self, plan: StepPlan, /) -> tuple[int, int]:
        """The ticket is the step's number and the number of tokens to yield."""
        return plan.step, len(plan.sampling_rows)

    def collect(self, ticket: tuple[int, int], /) -> StepResult:
        """As many tokens as rows sampled."""
        step, rows = ticket
        return StepResult(token_ids=[(step * 31 + row * 7) % VOCAB for row in range(rows)])

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()


def build_engine(
    rows: int, waiting: int, steps: int, tokenizer: Tokenizer | None = None, *, stream: bool = True
) -> Engine[tuple[int, int]]:
    """An engine with `rows` sequences in steady decode, at spread positions, and `waiting` more in the queue."""
    engine = Engine(
        limits=limits_of(rows, steps),
        cache_groups=GROUPS,
        runner=CountingRunner(),
        clock=SystemClock(),
        tokenizer=tokenizer,
    )
    for request in requests(rows + waiting, steps, stream=stream):
        engine.add(request)
    while sum(each.num_generated_tokens > 0 for each in engine.living()) < rows:
        engine.turn()
    return engine


def build_scheduler(rows: int, waiting: int, steps: int) -> Scheduler:
    """As `build_engine`, without an engine around it."""
    limits = limits_of(rows, steps)
    cache = KVCache(GROUPS, num_blocks=limits.num_blocks, block_size=BLOCK_SIZE)
    scheduler, runner = Scheduler(limits, cache, SystemClock()), CountingRunner()
    for request in requests(rows + waiting, steps):
        scheduler.add(request)
    while len(scheduler.table.decoding) < rows and (plan := scheduler.plan()):
        scheduler.commit(runner.collect(runner.submit(plan)))
    return scheduler


def limits_of(rows: int, steps: int) -> Limits:
    """Room for all rows to decode so many steps three times."""
    length = longest(steps)
    return Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        max_model_len=length + 64,
        vocab_size=VOCAB,
        block_size=BLOCK_SIZE,
        num_blocks=rows * (length // BLOCK_SIZE + 8),
    )


def longest(steps: int) -> int:
    """Tokens of an answer that does not end while it is measured."""
    return 64 + 3 * steps


def requests(count: int, steps: int, *, stream: bool = True) -> Iterator[Request]:
    """Prompts of spread lengths."""
    params = SamplingParams(max_tokens=longest(steps))
    for number in range(count):
        prompt = tuple((number * 7919 + place * 31) % VOCAB for place in range(48 + number % BLOCK_SIZE))
        yield Request(
            request_id=str(number),
            prompt_token_ids=prompt,
            sampling=params,
            eos_token_ids=frozenset({VOCAB}),
            stream=stream,
        )


def measure(scheduler: Scheduler, steps: int) -> tuple[list[float], list[float]]:
    """Microseconds of plan and of commit."""
    runner = ConstantRunner(7)
    plans, commits = [], []
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
    return plans, commits


def measure_turns(engine: Engine[tuple[int, int]], steps: int) -> list[float]:
    """Microseconds of whole turns."""
    turns = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.turn()
        turns.append((time.perf_counter() - began) * 1e6)
    return turns


def measure_all(rows: int, waiting: int, steps: int, tokenizer: Tokenizer) -> list[float]:
    """One row of the table."""
    engine, speaking = build_engine(rows, waiting, steps), build_engine(rows, waiting, steps, tokenizer)
    silent = build_engine(rows, waiting, steps, stream=False)
    gc.collect()
    gc.freeze()
    plans, commits = measure(build_scheduler(rows, waiting, steps), steps)
    turns = [statistics.median(measure_turns(each, steps)) for each in (silent, engine, speaking)]
    gc.unfreeze()
    figures = [statistics.median(plans), statistics.fmean(plans), statistics.median(commits)]
    return [*figures, statistics.fmean(commits), *turns]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=320, help="steps measured for each row of the table")
    steps = parser.parse_args().steps
    columns = ("rows", "waiting", "plan median", "plan mean", "commit median", "commit mean")
    turns = ("turn, not streamed", "turn, streamed", "with text")
    table = Table(*columns, *turns, title="control plane, us per steady decode step")
    tokenizer = HFTokenizer(str(model_folder()))
    for rows in (1, 64, 256, 1024):
        for waiting in (0, 100_000):
            figures = measure_all(rows, waiting, steps, tokenizer)
            table.add_row(f"{rows:,}", f"{waiting:,}", *(f"{figure:.1f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
