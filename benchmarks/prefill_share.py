"""Tokens a second that become vectors, beside those that become prompts of answers of one token, on the same weights and prompts.

    python -m benchmarks.prefill_share [--shape shape:qwen3-0.6b | bge-base] [--loads 64x2048 256x512] [--calls 3] [--device cuda]

A load is texts x tokens, of ids that are new in each call. The weights are random. One engine answers first, then another one makes vectors of
the last tokens; the best call of each counts. An encoder makes vectors alone.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.pooled_models import write_encoder, write_modules
from benchmarks.random_model import write_model
from nanoserve.entrypoints.bench.report import show, table
from nanoserve.entrypoints.compose.shapes import CONFIGS, PREFIX
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.sampling import SamplingParams

IDS = range(20, 1000)
ENCODER = "bge-base"


def rate(call: Callable[[list[list[int]]], Any], load: tuple[int, int], calls: int, seed: int) -> float:
    """Tokens a second of the best call; the first one counts for nothing."""
    texts, tokens = load
    draw, best = random.Random(f"{seed} {load}"), 0.0
    for number in range(calls + 1):
        prompts = [draw.choices(IDS, k=tokens) for _ in range(texts)]
        began = time.perf_counter()
        call(prompts)
        best = max(best, texts * tokens / (time.perf_counter() - began)) if number else 0.0
    return best


def read_load(text: str) -> tuple[int, int]:
    """Such as 64x2048."""
    texts, _, tokens = text.partition("x")
    return int(texts), int(tokens)


def main() -> None:
    """Measure each load with one engine, then with the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="shape:qwen3-0.6b")
    parser.add_argument("--loads", type=read_load, nargs="+", default=[(64, 2048), (256, 512)])
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--device")
    given = parser.parse_args()
    how = {} if given.device is None else {"device": given.device}
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if given.shape == ENCODER:
            write_encoder(folder)
        else:
            write_model(given.shape, folder)
            write_modules(folder, "lasttoken", CONFIGS[given.shape.removeprefix(PREFIX)]["hidden_size"])
            sampling = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
            with LLM(name, task="generate", **how) as llm:
                rates["prefill"] = [
                    rate(
                        lambda prompts: llm.generate(prompts, sampling, use_tqdm=False), each, given.calls, 0
                    )
                    for each in given.loads
                ]
        with LLM(name, task="embed", **how) as llm:
            rates["vectors"] = [
                rate(lambda prompts: llm.embed(prompts, use_tqdm=False), each, given.calls, 1)
                for each in given.loads
            ]
    rows = []
    for place, (texts, tokens) in enumerate(given.loads):
        found = [each[place] for each in rates.values()]
        ratio = f"{found[1] / found[0]:.3f}" if len(found) > 1 else ""
        rows.append(
            [f"{texts} x {tokens}", *(f"{each:,.0f}" for each in found), f"{found[-1] / tokens:,.1f}", ratio]
        )
    show(table([given.shape, *(f"{name} tok/s" for name in rates), "texts/s", "ratio"], rows))


if __name__ == "__main__":
    main()
