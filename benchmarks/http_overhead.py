"""What HTTP costs: concurrent streams through a server beside the same engine offline, and the time to a first token.

    python -m benchmarks.http_overhead [--model FOLDER] [--streams 64] [--input-len 64] [--output-len 128] [--repeats 3] [-- ENGINE OPTIONS]

Each repeat runs `nanoserve bench throughput` and `nanoserve bench serve` against a fresh `nanoserve serve`, one after the
other, with the same engine options. For the time to first token a single client asks one prompt after the other; what
the server's own books say of the engine's part (arrival to first token) is taken off, so that the rest is HTTP,
tokens' way between the processes included.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
from typing import Any

import httpx

from benchmarks.servers import NANOSERVE, metric, serving


def run(*command: str | int) -> dict[str, Any]:
    """What a benchmark command wrote as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "report.json"
        arguments = [*NANOSERVE, "bench", *map(str, command), "--json", str(file)]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(file.read_text())
        return report


def measure_first_token(url: str) -> tuple[float, float]:
    """Mean milliseconds until a client that is alone has the first token, and of what the engine took of that."""
    names = [f"time_to_first_token_seconds_{each}" for each in ("sum", "count")]
    load = (
        "--concurrency",
        1,
        "--num-prompts",
        100,
        "--warmup-requests",
        1,
        "--input-len",
        31,
        "--output-len",
        4,
    )
    with httpx.Client(base_url=url) as client:
        before = [metric(client, name) for name in names]
        report = run("serve", url, *load, "--temperature", 0)
        seconds, count = (metric(client, name) - was for name, was in zip(names, before, strict=True))
    return report["levels"][0]["ttft"]["mean"], 1e3 * seconds / count


def main() -> None:
    """Print a line per repeat and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("engine", nargs="*")
    given = parser.parse_args()
    load = ("--num-prompts", given.streams, "--input-len", given.input_len, "--output-len", given.output_len)
    named = [] if given.model is None else ["--model", given.model]
    ratios = []
    for _ in range(given.repeats):
        report = run("throughput", *named, *load, "--seeds", 1, *given.engine)
        offline = report["summary"]["output_tok_s"]["median"]
        with serving(given.model, given.engine) as url:
            served = run("serve", url, "--concurrency", given.streams, *load)["levels"][0]["output_tok_s"]
            first, engine = measure_first_token(url)
        ratios.append(served / offline)
        print(
            f"offline {offline:,.0f} tok/s, {given.streams} streams {served:,.0f} tok/s, ratio {served / offline:.2f}; "
            f"first token {first:.2f} ms, of which the engine {engine:.2f} ms",
            flush=True,
        )
    print(f"ratio: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
