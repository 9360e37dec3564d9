"""What both sides of the generation benchmark share: their arguments, their prompts, and how they are timed."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

import attrs
import psutil


@attrs.frozen
class Load:
    """`batch` prompts of `prompt_tokens` random ids, `tokens` to generate for each, timed `repeats` times."""

    folder: str
    batch: int
    prompt_tokens: int
    tokens: int
    repeats: int

    @classmethod
    def from_arguments(cls) -> Load:
        """As `benchmarks.generation` passes it."""
        folder, *numbers = sys.argv[1:]
        return cls(folder, *(int(number) for number in numbers))

    def prompts(self, repeat: int, vocab_size: int) -> list[list[int]]:
        """Prompts that no earlier repeat has used, so that no prefix is found in a cache."""
        draw = random.Random(repeat)  # noqa: S311 - a benchmark wants repeatable numbers
        return [
            [draw.randrange(16, vocab_size) for _ in range(self.prompt_tokens)] for _ in range(self.batch)
        ]


def threads() -> int:
    """Physical cores."""
    return psutil.cpu_count(logical=False) or 1


def report(load: Load, vocab_size: int, generate: Callable[[list[list[int]]], int]) -> None:
    """Warm up once, then print tokens per second of each repeat as one line of JSON."""
    generate(load.prompts(-1, vocab_size))
    speeds = []
    for repeat in range(load.repeats):
        prompts = load.prompts(repeat, vocab_size)
        began = time.perf_counter()
        count = generate(prompts)
        speeds.append(count / (time.perf_counter() - began))
        if count != load.batch * load.tokens:
            raise SystemExit(f"{count} tokens were generated where {load.batch * load.tokens} were asked for")
    print(json.dumps(speeds))
