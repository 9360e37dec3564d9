"""The engine's process as `nanoserve serve` starts it, except that some prompts make it fail.

What a prompt does stands in its token ids. Everything else is the real thing: the model, the runner, the loop.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from typing import Any

from nanoserve.domain.engine import Engine
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_host import main
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import StepPlan, StepResult
from tests.inside import inside

GUILTY, UNKNOWN, FATAL = 4001, 4002, 4003
"""Prompt tokens. The step that admits one fails and names the row, or fails and names none; the first turn that meets
one raises, in the first engine only."""
ONCE = "CHAOS_ONCE"
"""Names a file that is made when something happens that must not happen again."""


def marked(kind: int) -> list[int]:
    """A prompt that does something."""
    return [kind] * 4


class FaultyRunner:
    """Passes everything on to the real runner, unless a prompt is marked (`ModelRunner`)."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan, /) -> Any:
        """Fail where a marked prompt is admitted."""
        for row in plan.admitted:
            if GUILTY in row.token_ids[: row.num_prompt_tokens]:
                raise StepFailedError("scripted failure", guilty_rows=(row.row,))
            if UNKNOWN in row.token_ids[: row.num_prompt_tokens]:
                raise RuntimeError("scripted failure without a culprit")
        return self._runner.submit(plan)

    def collect(self, ticket: Any, /) -> StepResult:
        """As the real one."""
        result: StepResult = self._runner.collect(ticket)
        return result

    def counts(self) -> RunnerCounts:
        """As the real one."""
        counts: RunnerCounts = self._runner.counts()
        return counts


def build(settings: EngineSettings, watch: Stopwatch) -> Assembly:
    """The real assembly with a faulty runner."""
    assembly = assemble(settings, watch)
    engine = inside(assembly.engine)
    pipeline = engine._pipeline
    pipeline._runner = FaultyRunner(pipeline._runner)
    _raise_once(engine)
    return assembly


def _raise_once(engine: Engine[Any]) -> None:
    """As a bug in the control plane does."""
    turn, add = engine.turn, engine.add
    fatal: list[str] = []

    def noting_add(request: Any) -> None:
        add(request)
        if FATAL in request.prompt_token_ids:
            with contextlib.suppress(FileExistsError):
                pathlib.Path(os.environ[ONCE]).touch(exist_ok=False)
                fatal.append(request.request_id)

    def raising_turn() -> Any:
        if fatal:
            raise RuntimeError("scripted bug")
        return turn()

    engine.add, engine.turn = noting_add, raising_turn  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(build))
