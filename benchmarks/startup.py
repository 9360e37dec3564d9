"""What the time from a process's start to its first token is spent on, and the device memory that is taken by then.

`python -m benchmarks.startup shape:llama-3.1-8b`; with `--cold`, every kernel is compiled anew.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from nanoserve.entrypoints.bench.command import choose_subject
from nanoserve.entrypoints.bench.measurement import BenchWorkload, run_load
from nanoserve.entrypoints.bench.report import show, table, write_report
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.process import Stopwatch

_OWN_STATUS: Final = Path("/proc/self/stat")


def process_age() -> float:
    """Seconds since this process was started, to about a hundredth; on Linux only, elsewhere its processor seconds."""
    try:
        fields = _OWN_STATUS.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


def main() -> None:
    """Start an engine, generate one token, and print and write where the time went."""
    before, watch, arguments = process_age(), Stopwatch(), _arguments()
    given = {"model": arguments.model, "device": arguments.device, "dtype": arguments.dtype}
    configuration = read_configuration(given, os.environ)
    length = arguments.input_len
    workload = BenchWorkload(name="startup", num_prompts=1, input_len=length, output_len=1)
    with tempfile.TemporaryDirectory() as empty:
        if arguments.cold:
            os.environ["TRITON_CACHE_DIR"] = empty
        subject = choose_subject(configuration, workload.longest, watch=watch)
        parts = assemble_bench(subject.engine, watch)
        load = workload.draw(vocab_size=parts.spec.vocab_size, seed=0)
        run_load(parts.engine, load, subject.sampling)
        watch.lap(f"first token of a prompt of {length}")
    phases = {"interpreter and imports": before, **watch.phases}
    rows = [(name, f"{seconds:.2f}") for name, seconds in phases.items()]
    show(f"{subject.title}; {'no' if arguments.cold else 'with a'} cache of compiled kernels")
    show(table(["phase", "seconds"], [*rows, ("total", f"{sum(phases.values()):.2f}")]))
    if parts.facts.memory:
        memory = [(name, f"{size / 2**30:.2f}") for name, size in parts.facts.memory.items()]
        show(table(["device memory", "GiB"], memory))
    report = subject.describe("startup", parts.facts)
    write_report(arguments.json, report | {"cold": arguments.cold, "phases": phases})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "model", nargs="?", help="a folder, a hub name or a shape; the built-in model if left out"
    )
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
