"""What an engine gives back when it sleeps, how long it takes to wake up, and whether it answers as before.

`python -m benchmarks.sleep shape:llama-3.1-8b --cycles 100`; on a folder, every second cycle is of level 2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import psutil
import torch

from nanoserve.entrypoints.bench.report import show, table, write_report
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.steering import PARTS

ROWS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False, logprobs=0)


def in_use(device: str) -> int:
    """Bytes of the GPU that are in use, by whomever; on a CPU those of this process."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    return int(psutil.Process().memory_info().rss)


def answers(parts: BenchParts) -> list[tuple[str, tuple[int, ...], Any]]:
    """Tokens and their log-probabilities of a few fixed prompts that are computed together."""
    for row in range(ROWS):
        prompt = tuple([(37 * row + 11 * place) % (parts.spec.vocab_size - 9) + 4 for place in range(48)])
        parts.engine.add(Request(request_id=str(row), prompt_token_ids=prompt, sampling=GREEDY))
    found: list[tuple[str, tuple[int, ...], Any]] = []
    while parts.engine.has_work:
        for event in parts.engine.turn():
            if isinstance(event, TokensGenerated):
                assert not event.error, event.error
                found.append((event.request_id, tuple(event.token_ids), event.logprobs))
    return sorted(found, key=lambda each: each[0])


def cycle(parts: BenchParts, level: int) -> tuple[float, int, list[float]]:
    """Seconds until it slept, bytes in use then, and seconds until each part was awake."""
    engine, device = parts.engine, parts.facts.device
    began = time.perf_counter()
    engine.sleep(level)
    slept = time.perf_counter() - began
    asleep, wakes = in_use(device), []
    for part in PARTS:
        began = time.perf_counter()
        engine.weight_store.wake(part)
        wakes.append(time.perf_counter() - began)
    engine.note_awake(PARTS)
    return slept, asleep, wakes


def main() -> None:
    """Cycle, print and write."""
    arguments = _arguments()
    given = {
        name: getattr(arguments, name)
        for name in ("model", "device", "dtype", "max_model_len", "tensor_parallel_size")
    }
    engine = read_configuration(given, os.environ).engine
    nothing = in_use(arguments.device or "cuda") if torch.cuda.is_available() else 0
    parts = assemble_bench(engine)
    device, memory = parts.facts.device, parts.facts.memory
    before, full = answers(parts), in_use(device)
    sizes = (
        sum(size for name, size in memory.items() if "weights" in name),
        parts.facts.kv_bytes // arguments.tensor_parallel_size,
    )
    levels = (1, 2) if arguments.model and not arguments.model.startswith("shape:") else (1,)
    slept, wakes, used, equal = [], [], [], 0
    for number in range(arguments.cycles):
        seconds, asleep, woke = cycle(parts, levels[number % len(levels)])
        slept.append(seconds)
        wakes.append(woke)
        equal += answers(parts) == before
        used.append((asleep, in_use(device)))
    first, last = used[0], used[-1]
    rows = {
        "weights and KV cache, GiB": _gib(sum(sizes)),
        "in use awake": _gib(full - nothing),
        "in use asleep": _gib(first[0] - nothing),
        "freed": _gib(full - first[0]),
        "of weights and KV cache": f"{100 * (full - first[0]) / max(sum(sizes), 1):.1f}%",
        "cycles with equal tokens and log-probabilities": f"{equal} of {arguments.cycles}",
        "growth asleep and awake, MiB": f"{(last[0] - first[0]) >> 20}, {(last[1] - first[1]) >> 20}",
        "seconds to sleep: first, median, longest": _seconds(slept),
    }
    for place, part in enumerate(PARTS):
        rows[f"seconds to wake {part}: first, median, longest"] = _seconds([each[place] for each in wakes])
    show(table(["", ""], list(rows.items())))
    write_report(arguments.json, {"benchmark": "sleep", "memory": dict(memory), "rows": rows})


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def _seconds(found: list[float]) -> str:
    return f"{found[0]:.3f}, {statistics.median(found):.3f}, {max(found):.3f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a folder or a shape; the built-in model if left out")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
