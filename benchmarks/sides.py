"""What both sides of the generation benchmark share: their arguments, their prompts, and how they are timed."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import attrs
import psutil


@attrs.frozen
class Load:
    """`batch` prompts of `prompt_tokens` random ids, `tokens` to generate for each."""

    folder: str
    batch: int
    prompt_tokens: int
    tokens: int

    @classmethod
    def from_arguments(cls) -> Load:
        """As `benchmarks.generation` passes it."""
        folder, *numbers = sys.argv[1:]
        return cls(folder, *(int(number) for number in numbers))

    def prompts(self, repeat: int, vocab_size: int) -> list[list[int]]:
        """Prompts that no earlier repeat has used, so that no prefix is found in a cache."""
        draw = random.Random(repeat)
        return [
            [draw.randrange(16, vocab_size) for _ in range(self.prompt_tokens)] for _ in range(self.batch)
        ]


def threads() -> int:
    """Physical cores."""
    return psutil.cpu_count(logical=False) or 1


def serve(load: Load, vocab_size: int, generate: Callable[[list[list[int]]], int]) -> None:
    """Warm up, then time one repeat for each line that comes in, answering with its tokens per second."""
    generate(load.prompts(-1, vocab_size))
    print("ready", flush=True)
    for repeat, _ in enumerate(sys.stdin):
        prompts = load.prompts(repeat, vocab_size)
        began = time.perf_counter()
        count = generate(prompts)
        seconds = time.perf_counter() - began
        if count != load.batch * load.tokens:
            raise SystemExit(f"{count} tokens were generated where {load.batch * load.tokens} were asked for")
        print(count / seconds, flush=True)
