"""What answers keep of their speed when they follow grammars: whole calls of many requests at once, beside the same calls without.

    python -m benchmarks.constrained [--rows 64 256] [--tokens 128] [--pace 3] [--workers N] [--calls 3]

A runner stands for the device: it takes `--pace` milliseconds for a step, and draws any token that a mask allows, which is
the worst case. A model of random weights does about the same. The vocabulary is made up, of 128,256 tokens. So are the schemas:
records with names, numbers, dates, codes, bounded texts and lists, one for all rows (`one schema`) or one for each (`a schema each`),
first where none is compiled and then where all are. `1 of N`: what a free row keeps beside one that follows a grammar.

Calls of each kind take turns with free ones; shares are of the free speed, medians of `--calls`. `late`: masks that were missed by a step.
`masks us`: of processors, for each token, what threads other than the engine's took.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.grammars import VOCAB, DiceRunner, make_tokenizer
from nanoserve.adapters.llguidance.crew import Worker, start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.entrypoints.compose.choices import mask_workers
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.grammar import Constraint, Masks
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import StepPlan, StepResult

PROMPT = 32
NAMES = (
    "name",
    "city",
    "note",
    "email",
    "owner",
    "state",
    "label",
    "title",
    "region",
    "status",
    "author",
    "group",
)


def make_schema(number: int) -> str:
    """A list of records, none like another number's, that no answer comes to the end of."""
    draw = random.Random(number)
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "string"},
        lambda: {"type": "string", "maxLength": draw.randint(8, 40)},
        lambda: {"type": "integer"},
        lambda: {"type": "number"},
        lambda: {"type": "boolean"},
        lambda: {"type": "string", "format": draw.choice(["date", "date-time", "uuid"])},
        lambda: {"type": "string", "pattern": f"^[A-Z]{{{draw.randint(2, 4)}}}-[0-9]+$"},
        lambda: {"enum": draw.sample(["low", "medium", "high", "none", "open", "closed"], 3)},
        lambda: {"type": "array", "items": {"type": "string"}, "maxItems": draw.randint(2, 9)},
        lambda: {"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"type": "number"}}]},
    ]
    names = [f"{name}_{draw.randint(0, 99)}" for name in draw.sample(NAMES, draw.randint(3, 8))]
    record = {
        "type": "object",
        "properties": {name: draw.choice(kinds)() for name in names},
        "required": names[: len(names) // 2 + 1],
        "additionalProperties": False,
    }
    return json.dumps({"type": "array", "minItems": 90_000, "items": record})


class PacedDice(DiceRunner):
    """Takes so many seconds for each step, one after the other, as a device does: a step that is drawn late ends when it is drawn."""

    def __init__(self, rows: int, pace: float) -> None:
        super().__init__(rows)
        self._pace, self._free = pace, 0.0
        self._done: dict[int, float] = {}

    def submit(self, plan: StepPlan, /) -> StepPlan:
        """The device begins when it has done what came before."""
        done = max(time.perf_counter(), self._free) + self._pace
        self._done[plan.step] = self._free = done
        return super().submit(plan)

    def draw(self, ticket: StepPlan, masks: Masks, /) -> None:
        """Behind the forward pass."""
        super().draw(ticket, masks)
        self._done[ticket.step] = self._free = max(time.perf_counter(), self._done[ticket.step])

    def collect(self, ticket: StepPlan, /) -> StepResult:
        """Once the step is over."""
        time.sleep(max(self._done.pop(ticket.step) - time.perf_counter(), 0))
        return super().collect(ticket)


@attrs.frozen
class Call:
    """What a call took: seconds for so many tokens of so many rows, late masks, and processor seconds of other threads."""

    seconds: float
    tokens: int
    rows: int
    late: int
    elsewhere: float

    @property
    def rate(self) -> float:
        """Tokens per second of a row."""
        return self.tokens / self.rows / self.seconds


class Bench:
    """An engine, and the calls that it is asked; the grammars of a kind of call are new with each `forget`."""

    def __init__(
        self, make: Callable[..., Any], runner: Any, rows: int, tokens: int, crew: list[Worker]
    ) -> None:
        self._make, self._runner, self._crew = make, runner, crew
        self._rows, self._tokens, self._number = rows, tokens, 0
        self.forget()

    def forget(self) -> None:
        """No grammar is compiled any more."""
        grammars = LLGrammars(lambda: self._crew, workers=len(self._crew))
        self.engine = self._make(constraints=Constraints(grammars, self._runner))

    def call(self, schemas: Sequence[str]) -> Call:
        """All rows at once, the first of which have these schemas; of free rows alone the tokens count where there are any."""
        rows = self._rows - len(schemas) if len(schemas) < self._rows else self._rows
        late, elsewhere = self.engine.state().late_masks, time.process_time() - time.thread_time()
        started, number = time.perf_counter(), self._number
        for row in range(self._rows):
            bound = Constraint("json_schema", schemas[row]) if row < len(schemas) else None
            self.engine.add(self._request(f"{number + row}", bound))
        self._number += self._rows
        tokens, ended, free = 0, 0, {f"{number + row}" for row in range(len(schemas), self._rows)}
        while ended < rows:
            for event in self.engine.turn():
                if isinstance(event, TokensGenerated):
                    assert event.error is None, event.error
                    is_counted = not free or event.request_id in free
                    tokens += len(event.token_ids) * is_counted
                    ended += event.finish_reason is not None and is_counted
        seconds = time.perf_counter() - started
        elsewhere = time.process_time() - time.thread_time() - elsewhere
        late = self.engine.state().late_masks - late
        while self.engine.has_work:
            self.engine.turn()
        return Call(seconds, tokens, rows, late, elsewhere)

    def _request(self, name: str, bound: Constraint | None) -> Request:
        draw = random.Random(name)
        return Request(
            request_id=name,
            prompt_token_ids=tuple(draw.randrange(VOCAB - 1) for _ in range(PROMPT)),
            sampling=SamplingParams(max_tokens=self._tokens, temperature=1.0, detokenize=False),
            seed=int(name),
            eos_token_ids=frozenset() if bound is None else frozenset({VOCAB - 1}),
            constraint=bound,
            stream=False,
        )


def measure(bench: Bench, rows: int, calls: int, table: Table) -> None:
    """A line for each kind of call."""
    each = [make_schema(number) for number in range(rows)]
    kinds = {"one schema": each[:1] * rows, "a schema each": each, f"1 of {rows}": each[:1]}
    bench.call([])
    found: dict[str, list[tuple[Call, Call]]] = {}
    for _ in range(calls):
        for name, schemas in kinds.items():
            bench.forget()
            for state in ("compiling", "compiled"):
                pair = bench.call([]), bench.call(schemas)
                found.setdefault(f"{name}, {state}", []).append(pair)
    for name, pairs in found.items():
        middle = statistics.median
        free, bound = zip(*pairs, strict=True)
        shares = [one.rate / other.rate for other, one in pairs]
        figures = (
            f"{rows * middle(one.rate for one in free):,.0f}",
            f"{rows * middle(one.rate for one in bound):,.0f}",
            f"{middle(shares):.1%}",
            f"{min(shares):.1%}",
            f"{middle(one.late for one in bound):.0f}",
            f"{middle(1e6 * one.elsewhere / one.tokens for one in bound):.1f}",
        )
        table.add_row(str(rows), name, *figures)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--pace", type=float, default=3.0, help="milliseconds of a step")
    parser.add_argument("--workers", type=int, default=mask_workers(), help="that fill masks")
    parser.add_argument("--calls", type=int, default=3, help="of each kind")
    asked = parser.parse_args(given)
    columns = ("rows", "answers", "free tok/s", "tok/s", "share", "least", "late", "masks us")
    table = Table(*columns, title=f"{asked.tokens} tokens each, {asked.workers} workers for masks")
    settings = Settings(make_tokenizer(VOCAB).to_str(), (VOCAB - 1,), VOCAB, VOCAB)
    crew = start_workers(settings, asked.workers)
    for rows in asked.rows:
        length = PROMPT + asked.tokens
        limits = Limits(
            max_num_seqs=rows,
            max_num_batched_tokens=8192,
            max_model_len=length + 1,
            vocab_size=VOCAB,
            block_size=16,
            num_blocks=rows * (length // 16 + 2),
            prefix_caching=False,
        )
        runner = PacedDice(rows, asked.pace / 1e3)
        make = functools.partial(
            Engine,
            limits=limits,
            cache_groups=(CacheGroup(layers=(0,)),),
            runner=runner,
            clock=SystemClock(),
            depth=2,
        )
        bench = Bench(make, runner, rows, asked.tokens, crew)
        measure(bench, rows, asked.calls, table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
