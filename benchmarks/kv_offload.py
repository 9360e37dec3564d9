"""Time to the first token of a prompt whose keys and values are in host memory, beside computing it, in pairs.

    python -m benchmarks.kv_offload [--model MODEL] [--tokens N] [--pairs N] [--memory BYTES] [--device cpu|cuda]

Each pair is one prompt of random tokens: computed, then displaced from the device by others, then asked for again. With the
embedded model if none is given; `--model shape:NAME` measures a shape with random weights.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.configuration import argument_settings
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

BLOCK = 16


def first_token(engine: EngineHandle, name: str, prompt: tuple[int, ...]) -> float:
    """Seconds from the request to its first token; what it has asked of host memory is finished afterwards."""
    began, seconds = time.perf_counter(), 0.0
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    engine.add(Request(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, TokensGenerated) and event.token_ids:
                seconds = time.perf_counter() - began
    return seconds


def main() -> None:
    """Measure pairs, and print each and their medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=960)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    blocks = -(-(args.tokens + 2) // BLOCK)
    settings: dict[str, Any] = {
        "model": args.model,
        "device": args.device,
        "num_kv_blocks": 2 * blocks,
        "max_model_len": args.tokens + 2,
        "kv_offload_memory": args.memory,
    }
    parts = assemble_bench(argument_settings(settings))
    dice, engine = random.Random(0), parts.engine

    def prompt() -> tuple[int, ...]:
        return tuple(dice.randrange(parts.spec.vocab_size) for _ in range(args.tokens))

    first_token(engine, "warm-up", prompt())
    computed, loaded = [], []
    for pair in range(args.pairs):
        ours = prompt()
        computed.append(first_token(engine, f"{pair} computed", ours))
        for number in range(2):
            first_token(engine, f"{pair} other {number}", prompt())
        before = engine.state().prefix_hits
        loaded.append(first_token(engine, f"{pair} loaded", ours))
        hits = engine.state().prefix_hits - before
        print(f"{1000 * computed[-1]:9.1f} ms computed {1000 * loaded[-1]:9.1f} ms with {hits} tokens loaded")
    ratios = [slow / fast for slow, fast in zip(computed, loaded, strict=True)]
    medians = [1000 * statistics.median(each) for each in (computed, loaded)]
    print(
        f"{medians[0]:9.1f} ms computed {medians[1]:9.1f} ms loaded, medians; {statistics.median(ratios):.1f} times"
    )


if __name__ == "__main__":
    main()
