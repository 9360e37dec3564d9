"""An engine host over a model that is a hash of its prompt, and that some prompts kill, hang or make fail.

Run as a program it is what `remote_engine(command=...)` starts: a real process with everything but a model.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from typing import Any

from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_host import main
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.driven import Check
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import ModelLoadError, StepFailedError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.layer_spec import AttentionSpec, DenseSpec, LayerSpec
from nanoserve.ports.model_spec import ModelSpec, NormSpec
from nanoserve.ports.sampling import SamplingDefaults
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.memory_runner import MemoryRunner
from tests.fakes.pooled_texts import EncodesPooled
from tests.patience import wait_until

VOCAB = 512
KILLER, HANGER, RAISER, DENIED, SLOW, LATE = 500, 501, 502, 503, 504, 505
"""Prompt tokens: the process dies in the step that computes one, hangs in it, or the step raises; a denied one raises
where the request is checked; late ones let it die in a step of its sequence that begins behind `LATE_TOKENS`."""
LATE_TOKENS = 30
SPEC = ModelSpec(
    architecture="llama",
    hidden_size=8,
    vocab_size=VOCAB,
    max_position=512,
    norm=NormSpec(eps=1e-5),
    layers=(LayerSpec(AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=4), DenseSpec(size=8)),) * 2,
    tied_embeddings=True,
)


class NumberTokenizer(EncodesPooled):
    """Every token is its number and a space."""

    vocab_size = VOCAB
    eos_token_ids: tuple[int, ...] = ()

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, check: Check = None
    ) -> list[int]:
        ids = [int(word) for word in text.split()]
        if check:
            check(len(ids))
        return ids

    def decode(self, token_ids: object, /, *, skip_special_tokens: bool = True) -> str:
        assert isinstance(token_ids, (list, tuple))
        return "".join(f"{token} " for token in token_ids)

    def bytes_of(self, token_id: int, /) -> bytes:
        return f"{token_id} ".encode()

    def text_of(self, token_id: int, /) -> str | None:
        return f"{token_id} "


class MortalRunner(MemoryRunner):
    """Takes two milliseconds per step, or fifty once it has met `SLOW`, and dies of some tokens."""

    pause = 0.002

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late: dict[int, int] = {}

    def collect(self, ticket: StepPlan, /) -> StepResult:
        time.sleep(self.pause)
        for row in ticket.released:
            self._late.pop(row, None)
        for row in self._late.keys() & {*ticket.decoding}:
            self._late[row] += 1
        for admitted in ticket.admitted:
            if LATE in admitted.token_ids:
                self._late[admitted.row] = len(admitted.token_ids)
        if any(length > LATE_TOKENS for length in self._late.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        for admitted in ticket.admitted:
            if SLOW in admitted.token_ids:
                self.pause = 0.05
            if KILLER in admitted.token_ids:
                os.kill(os.getpid(), signal.SIGKILL)
            if HANGER in admitted.token_ids:
                hang()
            if RAISER in admitted.token_ids:
                super().collect(ticket)
                raise StepFailedError("scripted failure", guilty_rows=(admitted.row,))
        return super().collect(ticket)


def hang() -> None:
    """Say so, and block as a device that never answers does."""
    sys.stderr.write("the step hangs\n")
    sys.stderr.flush()
    time.sleep(3600)


def build(settings: EngineSettings, watch: Stopwatch, *, num_blocks: tuple[int, ...] = ()) -> Assembly:
    """`num_kv_blocks` blocks of 4 tokens; some model names cannot be loaded, `slow` takes a second, `gate:PATH` until there is such a file."""
    if settings.model == "missing":
        raise ModelLoadError("there is no such model; name another one")
    if settings.model == "mortal":
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.model == "buggy":
        raise RuntimeError("a bug in the start")
    if settings.model == "slow":
        time.sleep(1.0)
    if (settings.model or "").startswith("gate:"):
        wait_until(pathlib.Path(str(settings.model).removeprefix("gate:")).exists)
    count = settings.num_kv_blocks or 4096
    assert num_blocks in {(), (count,)}
    limits = Limits(
        max_model_len=SPEC.max_position,
        vocab_size=VOCAB,
        num_blocks=count,
        block_size=4,
        max_num_seqs=settings.max_num_seqs or 64,
        max_num_batched_tokens=256,
    )
    tokenizer = NumberTokenizer()
    runner = MortalRunner(SPEC.cache_groups, num_blocks=count, block_size=4, vocab_size=VOCAB - 100)
    engine = Engine(
        limits=limits,
        cache_groups=SPEC.cache_groups,
        runner=runner,
        clock=SystemClock(),
        tokenizer=tokenizer,
        paranoid=settings.paranoid,
    )
    _break_turns(engine)
    watch.lap("scripted")
    return Assembly(
        folder="scripted",
        engine=engine,
        tokenizer=tokenizer,
        template=_NoTemplate(),
        spec=SPEC,
        defaults=SamplingDefaults(),
        facts=EngineFacts(
            **limits.sizes(), pid=os.getpid(), model=settings.model or "built-in", device="cpu", dtype="none"
        ),
    )


def _break_turns(engine: Engine[StepPlan]) -> None:
    """While a request `spin` lives, turns compute nothing; with one named `bug` they raise."""
    turn = engine.turn

    def broken() -> list[EngineEvent]:
        if "bug" in engine.scheduler.table.requests:
            raise AssertionError("the books are wrong")
        return [] if "spin" in engine.scheduler.table.requests else turn()

    engine.turn = broken  # type: ignore[method-assign]


class _NoTemplate:
    def render(self, messages: object, /, *, add_generation_prompt: bool = True, **_: Any) -> list[int]:
        raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main(build, prepare=lambda **_: None))
