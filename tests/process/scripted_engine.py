"""The process of an engine without a model: the built-in one's tokenizer and limits over a runner that draws by hashing.

For questions to a server that no model need answer: it starts without torch, costs next to no CPU time, and its runner
checks every plan of the scheduler. A text is a function of prompt and seed, and not of temperature.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import attrs

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import assemble_text
from nanoserve.entrypoints.compose.choices import choose_sizes, make_limits
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_host import main
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.memory_runner import MemoryRunner

COMMAND = (sys.executable, "-m", "tests.process.engine_swap", "tests.process.scripted_engine")
"""`nanoserve` over this engine."""
BLOCKS = 2048
SLOW = 4004
"""A prompt token: while a sequence with it runs, steps take `SLOW_STEP`."""
STEP, SLOW_STEP = 0.002, 0.05
"""Seconds of a step, in which the processor is free."""


class PacedRunner(MemoryRunner):
    """Takes its time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._slow: set[int] = set()

    def submit(self, plan: StepPlan, /) -> StepPlan:
        self._slow.difference_update(plan.released)
        self._slow.update(each.row for each in plan.admitted if SLOW in each.token_ids)
        return super().submit(plan)

    def collect(self, ticket: StepPlan, /) -> StepResult:
        time.sleep(SLOW_STEP if self._slow else STEP)
        return super().collect(ticket)


def build(settings: EngineSettings, watch: Stopwatch) -> Assembly:
    folder = str(model_folder())
    text, spec = assemble_text(folder), read_spec(folder)
    sizes = attrs.evolve(choose_sizes(settings, spec, "cpu"), num_blocks=settings.num_kv_blocks or BLOCKS)
    runner = PacedRunner(
        spec.cache_groups,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        vocab_size=spec.vocab_size,
    )
    engine = Engine(
        limits=make_limits(settings, sizes),
        cache_groups=spec.cache_groups,
        runner=runner,
        clock=SystemClock(),
        tokenizer=text.tokenizer,
        paranoid=settings.paranoid,
    )
    watch.lap("scripted")
    return Assembly(
        folder=folder,
        engine=engine,
        tokenizer=text.tokenizer,
        template=text.template,
        spec=spec,
        defaults=text.defaults,
        facts=EngineFacts(**sizes.sizes(), pid=os.getpid(), model="built-in", device="cpu", dtype="none"),
    )


if __name__ == "__main__":
    sys.exit(main(build, prepare=lambda **_: None))
