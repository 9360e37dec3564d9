"""An engine's process without a model, and `nanoserve` over it: tokens at the pace that was asked for, whoever reads them.

    python -m benchmarks.paced_engine PERIOD FILE_DESCRIPTOR
    python -m benchmarks.paced_engine PERIOD serve ...

Every running sequence gets one token in each period of so many seconds. All tokens have a text of their own. Of a model that makes
vectors all texts that were admitted get one then.
"""

from __future__ import annotations

import functools
import sys
import time
from unittest import mock

import attrs

from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.entrypoints.cli import main as run_command_line
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.choices import make_limits
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.entrypoints.compose.engine_host import main
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.step import StepPlan, StepResult


class PacedRunner:
    """Goes through the tokens that are plain words; vectors have so many numbers."""

    def __init__(self, tokenizer: Tokenizer, period: float, width: int = 0) -> None:
        texts = [(token, tokenizer.decode([token])) for token in range(tokenizer.vocab_size)]
        self._words = [token for token, text in texts if text.strip().isalpha() and text.isascii()]
        self._period, self._vector = period, tuple([1.0 / (place + 1) for place in range(width)])
        self._due = time.monotonic()

    def submit(self, plan: StepPlan, /) -> tuple[int, int, tuple[int, ...]]:
        """The ticket is the step's number, the number of tokens to yield, and the rows that yield vectors."""
        return plan.step, len(plan.sampling_rows), plan.pooling_rows

    def collect(self, ticket: tuple[int, int, tuple[int, ...]], /) -> StepResult:
        """Not before it is time."""
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due, time.monotonic() - self._period) + self._period
        step, rows, pooling = ticket
        return StepResult(
            token_ids=[self._words[(step * 31 + row * 7) % len(self._words)] for row in range(rows)],
            pooled=dict.fromkeys(pooling, self._vector),
        )

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()


def build(settings: EngineSettings, watch: Stopwatch, *, period: float) -> Assembly:
    """The embedded model's engine with another runner."""
    assembly = assemble(settings, watch)
    runner = PacedRunner(assembly.tokenizer, period, assembly.spec.hidden_size)
    engine = Engine(
        limits=make_limits(settings, assembly.facts),
        cache_groups=assembly.spec.cache_groups,
        runner=runner,
        clock=SystemClock(),
        tokenizer=assembly.tokenizer,
    )
    return attrs.evolve(assembly, engine=engine)


def command(period: float | str) -> tuple[str, ...]:
    """What starts such an engine, or `nanoserve` over it."""
    return (sys.executable, "-m", "benchmarks.paced_engine", str(period))


if __name__ == "__main__":
    pace = float(sys.argv.pop(1))
    if sys.argv[1].isdigit():
        sys.exit(main(functools.partial(build, period=pace)))
    paced = functools.partial(remote_engine, command=command(pace))
    unprepared = mock.patch("nanoserve.entrypoints.compose.early.launching.launch", side_effect=OSError)
    with unprepared, mock.patch("nanoserve.entrypoints.server.serve.remote_engine", paced):
        run_command_line()
