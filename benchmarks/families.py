"""The loads by which families are compared, one after the other on one engine for each shape: single, 8, 64 and prefill.

`python -m benchmarks.families shape:qwen3-30b-a3b shape:gemma-3-4b`, with `--profile single b64` also by kernel. On a CPU
`--device cpu --scale 32` divides all lengths.
"""

from __future__ import annotations

import argparse
import statistics
import time

from nanoserve.entrypoints.bench.floors import floor_of
from nanoserve.entrypoints.bench.measurement import run_load
from nanoserve.entrypoints.bench.profiling import profile_load
from nanoserve.entrypoints.bench.tables import profile_table, show
from nanoserve.entrypoints.bench.workloads import BenchWorkload, draw_load
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.entrypoints.compose.stopwatch import Stopwatch
from nanoserve.ports.sampling import SamplingParams

LOADS = {"single": (1, 128, 512), "b8": (8, 512, 256), "b64": (64, 512, 256), "prefill": (64, 2048, 1)}
"""Prompts, tokens of each, tokens to generate."""
SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False)
LONGEST = 2304
RUNS = 3
"""The first warms up and does not count."""


def main() -> None:
    """Build an engine for each shape and run every load."""
    arguments = _arguments()
    ceilings = Ceilings(arguments.bandwidth * 1e12, arguments.compute * 1e12)
    for shape in arguments.shapes:
        began = time.perf_counter()
        settings = EngineSettings(
            model=shape, device=arguments.device, max_num_seqs=64, max_model_len=LONGEST
        )
        parts = assemble_bench(settings, Stopwatch())
        print(f"{shape}: ready in {time.perf_counter() - began:.1f} s", flush=True)
        for name in arguments.loads:
            _measure(parts, _workload(name, arguments.scale), ceilings)
        for name in arguments.profile:
            load = draw_load(_workload(name, arguments.scale), vocab_size=parts.spec.vocab_size, seed=RUNS)
            show(name, profile_table(profile_load(parts, load, SAMPLING, ceilings)))
        print(f"compiled late: {parts.engine.counts().runner.late_compiles}", flush=True)


def _workload(name: str, scale: int) -> BenchWorkload:
    prompts, tokens, output = LOADS[name]
    return BenchWorkload(
        name=name, num_prompts=prompts, input_len=max(tokens // scale, 1), output_len=max(output // scale, 1)
    )


def _measure(parts: BenchParts, workload: BenchWorkload, ceilings: Ceilings) -> None:
    """Print the medians of all runs but the first."""
    output, prompt, fractions = [], [], []
    for seed in range(RUNS):
        load = draw_load(workload, vocab_size=parts.spec.vocab_size, seed=seed)
        run = run_load(parts, load, SAMPLING)
        output.append(run.figures()["output_tok_s"])
        prompt.append(run.figures()["prompt_tok_s"])
        fractions.append(floor_of(load, parts, ceilings).seconds / run.seconds)
    found = [statistics.median(each[1:]) for each in (output, prompt, fractions)]
    print(
        f"{workload.description}: {found[0]:,.0f} output tok/s, {found[1]:,.0f} prompt tok/s, "
        f"{found[2]:.2f} of the floor",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--profile", nargs="*", choices=LOADS, default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bandwidth", type=float, default=4.62, help="terabytes per second, for the floor")
    parser.add_argument("--compute", type=float, default=784.0, help="teraflops per second, for the floor")
    parser.add_argument("--scale", type=int, default=1, help="divides all lengths")
    return parser.parse_args()


if __name__ == "__main__":
    main()
