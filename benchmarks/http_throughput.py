"""Tokens per second through a real server, counted by the server, with clients that only read bytes; and who is busy.

    python -m benchmarks.http_throughput [--model FOLDER | --period SECONDS] [--streams 256] [--input-len 512] [--output-len 128]
                                         [--seconds 20] [--clients 4] [-- SERVER OPTIONS]

The clients ask without end, each time with a new prompt. With `--period` the engine computes nothing, and every stream gets
a token in each period of so many seconds, or as fast as the processes come along. The share of a core that each process of the server takes says
where the limit is.
"""

from __future__ import annotations

import argparse
import contextlib
import time

import httpx
import psutil

from benchmarks.crowds import PATHS, crowd
from benchmarks.paced_engine import command as paced_command
from benchmarks.servers import NANOSERVE, metric, serving


def main() -> None:
    """Print one line of speed and one of processor shares for every window."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--period", help="take an engine that computes nothing, at this pace")
    parser.add_argument("--protocol", choices=PATHS, default="completions")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4, help="processes that the streams are spread over")
    parser.add_argument("server", nargs="*")
    given = parser.parse_args()
    lengths = (given.protocol, given.input_len, given.output_len)
    with contextlib.ExitStack() as stack:
        command = NANOSERVE if given.period is None else paced_command(given.period)
        url = stack.enter_context(serving(given.model, given.server, command))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        for number in range(given.clients):
            count = (given.streams + number) // given.clients
            stack.enter_context(crowd("asking", url, count, *lengths))
        processes = {each.pid: each for each in psutil.Process().children(recursive=True)}
        for _ in range(given.windows):
            before, began = metric(client, "generation_tokens_total"), time.perf_counter()
            for each in processes.values():
                each.cpu_percent()
            time.sleep(given.seconds)
            rate = (metric(client, "generation_tokens_total") - before) / (time.perf_counter() - began)
            busy = {_name(each): each.cpu_percent() for each in processes.values()}
            shares = ", ".join(f"{name} {share:.0f}%" for name, share in busy.items() if share >= 1)
            print(f"{rate:,.0f} tok/s; processor: {shares}", flush=True)


def _name(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    roles = {
        "engine_host": "engine",
        "paced_engine": "main" if "serve" in command else "engine",
        "benchmarks.crowds": "clients",
        "workers.program": "HTTP",
        "nanoserve serve": "main",
    }
    return f"{next((role for part, role in roles.items() if part in command), 'other')} {process.pid}"


if __name__ == "__main__":
    main()
