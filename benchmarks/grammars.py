"""What rows that follow a grammar cost the host: steady decode steps over a runner that computes nothing, by llguidance.

    python -m benchmarks.grammars [--steps N] [--threads N ...] [--rows N ...] [--phases]

Vocabulary of 128,256 made-up tokens, four JSON schemas, tokens drawn at random among those that the masks allow. For each number of rows it
prints one line for free rows and one for each number of threads that fill masks, in microseconds per row and step:

- `cpu`, of all threads, and `main`, of the engine's thread alone: what the machine and the interpreter's lock are busy for.
- `wall`: the whole turn, without what the runner took. On a machine with fewer cores than threads it says little.
- with `--phases`, of the engine's thread's time, `consume` (matchers go on), `begin` (masks are begun), `wait` (masks are waited for and looked at).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nanoserve.adapters.llguidance.crew import start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.grammar import Constraint, MaskBlock, Masks, new_block
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import StepPlan, StepResult

VOCAB = 128_256
WARM_UP = 12
NEAR = 128
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "kind": {"enum": ["a", "bb", "ccc"]},
        "when": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
    },
    "required": ["name", "age", "kind", "when", "tags"],
    "additionalProperties": False,
}
KINDS = (ITEM, {"type": "object"}, {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, {"type": "number"})
SCHEMAS = [json.dumps({"type": "array", "minItems": 90_000, "items": each}) for each in KINDS]


def make_tokenizer(size: int) -> Tokenizer:
    """Of bytes, made-up words and some punctuation; the last id ends an answer."""
    draw = random.Random(0)
    vocab = {each: number for number, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    while len(vocab) < size - 1:
        word = "".join(draw.choices(letters, range(26, 0, -1), k=draw.randint(2, 9)))
        kind = draw.random()
        word = "Ġ" + word if kind < 0.45 else word.capitalize() if kind < 0.6 else word
        if kind > 0.95:
            word = "".join(draw.choices('0123456789{}[]":,.;()<>=/-_', k=draw.randint(2, 5)))
        vocab.setdefault(word, len(vocab))
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.decoder, made.pre_tokenizer = (
        decoders.ByteLevel(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    made.add_tokens([AddedToken("<|end|>", special=True)])
    return made


class DiceRunner:
    """Draws any token that the masks allow; notes what it takes for that.

    Attributes:
        seconds: of the wall, and `cpu`, of its thread.
    """

    def __init__(self, rows: int) -> None:
        self._masks = new_block(VOCAB, rows)
        self._draw = random.Random(1)
        self._drawn: dict[int, list[int]] = {}
        self.seconds, self.cpu = 0.0, 0.0

    def submit(self, plan: StepPlan, /) -> StepPlan:
        """The ticket is the plan."""
        return plan

    def mask_block(self, _count: int, /) -> MaskBlock:
        """Those of the step before, which is drawn."""
        return self._masks

    def draw(self, ticket: StepPlan, masks: Masks, /) -> None:
        """Each row from a random place of its mask on."""
        wall, cpu = time.perf_counter(), time.thread_time()
        self._drawn[ticket.step] = [
            self._any_of(masks[row]) if row in masks else 0 for row in ticket.sampling_rows
        ]
        self.seconds += time.perf_counter() - wall
        self.cpu += time.thread_time() - cpu

    def collect(self, ticket: StepPlan, /) -> StepResult:
        """Free rows get the same token always."""
        return StepResult(token_ids=self._drawn.pop(ticket.step, [300] * len(ticket.sampling_rows)))

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()

    def _any_of(self, mask: memoryview) -> int:
        """Looks at little of most masks, so that the engine finds its own memory where it left it."""
        first = self._draw.randrange(len(mask))
        near = bytes(mask[first : first + NEAR])
        turned = near if any(near) else bytes(mask[first:]) + bytes(mask[:first])
        place = len(turned) - len(turned.lstrip(b"\0"))
        bit = self._draw.choice([bit for bit in range(8) if turned[place] >> bit & 1])
        return (first + place) % len(mask) * 8 + bit


class Timed:
    """Times of the engine's thread in some calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, and its time is noted; that of what it returns too, if that can be called."""

        def timed(*given: Any) -> Any:
            began = time.thread_time()
            try:
                result = call(*given)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - began
            return self.wrap("wait", result) if callable(result) else result

        return timed


def make_request(number: int, eos_token_ids: frozenset[int], *, bound: bool) -> Request:
    """A row, bound by one of the schemas in turn or free."""
    return Request(
        request_id=str(number),
        prompt_token_ids=tuple((number * 7919 + place * 31) % 90_000 for place in range(32)),
        sampling=SamplingParams(max_tokens=1000, temperature=1.0),
        eos_token_ids=eos_token_ids,
        constraint=Constraint("json_schema", SCHEMAS[number % len(SCHEMAS)]) if bound else None,
    )


def measure(settings: Settings, rows: int, steps: int, workers: int, *, phases: bool = False) -> list[float]:
    """One line: microseconds per row and step. No workers: free rows."""
    limits = Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        max_model_len=2048,
        vocab_size=VOCAB,
        block_size=16,
        num_blocks=rows * 80,
    )
    runner = DiceRunner(rows)
    grammars = LLGrammars(lambda: start_workers(settings, workers), workers=max(workers, 1))
    timed = Timed()
    for name, given in (("consume", "consume"), ("begin", "fill")) if phases else ():
        setattr(grammars, given, timed.wrap(name, getattr(grammars, given)))
    engine = Engine(
        limits=limits,
        cache_groups=(CacheGroup(layers=(0,)),),
        runner=runner,
        clock=SystemClock(),
        depth=2,
        constraints=Constraints(grammars, runner),
    )
    for number in range(rows):
        engine.add(make_request(number, frozenset(settings.ends), bound=workers > 0))
    while min(each.num_generated_tokens for each in engine.living()) < WARM_UP:
        errors = [each for each in engine.turn() if isinstance(each, TokensGenerated) and each.error]
        assert not errors, errors
    gc.collect()
    gc.freeze()
    timed.seconds.clear()
    runner.seconds = runner.cpu = 0.0
    began = (time.process_time(), time.thread_time(), time.perf_counter())
    for _ in range(steps):
        engine.turn()
    cpu, main, wall = (
        after - before
        for after, before in zip(
            (time.process_time(), time.thread_time(), time.perf_counter()), began, strict=True
        )
    )
    gc.unfreeze()
    assert len(list(engine.living())) == rows
    parts = [timed.seconds.get(name, 0.0) for name in ("consume", "begin", "wait")]
    figures = [cpu - runner.cpu, main - runner.cpu, wall - runner.seconds, *parts]
    return [each / steps / rows * 1e6 for each in figures]


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100, help="steps measured for each line")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="that fill masks")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 64, 256])
    parser.add_argument(
        "--phases", action="store_true", help="time calls, which costs time where clocks are dear"
    )
    asked = parser.parse_args(given)
    settings = Settings(make_tokenizer(VOCAB).to_str(), (VOCAB - 1,), VOCAB, VOCAB)
    columns = ("rows", "workers", "cpu", "main", "wall", "consume", "begin", "wait")
    table = Table(*columns, title="host work of rows that follow a grammar, us per row and step")
    for rows in asked.rows:
        for workers in (0, *asked.workers):
            figures = measure(settings, rows, asked.steps, workers, phases=asked.phases)
            table.add_row(str(rows), str(workers or "free"), *(f"{each:.2f}" for each in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
