"""What watching costs: a server's throughput with nobody, one and ten viewers at `/live`, and a turn's time with a log.

    python -m benchmarks.viewers [--model FOLDER] [--streams 32] [--input-len 64] [--output-len 256] [--rounds 9]
                                 [--seconds 3] [--steps 2000] [-- ENGINE OPTIONS]

One server, one run, one load: so many streams ask without end, and in each round every crowd of viewers is attached in
turn, in an order drawn anew, for some seconds. The viewers share a process of their own and read all they are sent; the
last crowd has one more that never reads. Differences are to the round's own measurement without viewers; the table has
the median of them, and the mean with its standard error.

Before that, without any server: microseconds of `Engine.turn` over a runner that computes nothing, without and with a
step log, and what writing the log out adds to each turn.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import socket
import statistics
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.control_plane import build_engine
from benchmarks.control_plane import measure_turns as turns_of
from benchmarks.crowds import LIVE, crowd
from benchmarks.servers import metric, serving
from nanoserve.adapters.trace.codec import JsonTraceFormat

BATCH: Final = 20
"""Turns that are measured and written out together, as many as ten parts of a log per second hold of fast ones."""


@attrs.frozen
class Viewers:
    """So many that read, and so many that do not."""

    reading: int
    stuck: int = 0

    def __str__(self) -> str:
        return f"{self.reading}" + (f" and {self.stuck} that never reads" if self.stuck else "")


CROWDS: Final = (Viewers(0), Viewers(1), Viewers(10), Viewers(10, stuck=1))


def measure_turns(rows: int, steps: int) -> tuple[float, float, float]:
    """Median microseconds of a turn without a log, of one with it, and of writing out what one has told."""
    silent, watched = build_engine(rows, 0, steps), build_engine(rows, 0, steps)
    recorder, encode = watched.record(), JsonTraceFormat().encode
    recorder.snapshot()
    gc.collect()
    gc.freeze()
    times: list[list[float]] = [[], [], []]
    for _ in range(steps // BATCH):
        for engine, seen in ((silent, times[0]), (watched, times[1])):
            seen.append(statistics.fmean(turns_of(engine, BATCH)))
        began = time.perf_counter()
        b"\n".join([encode(turn) for turn in recorder.take()])
        times[2].append((time.perf_counter() - began) / BATCH * 1e6)
    gc.unfreeze()
    silent_us, watched_us, written_us = (statistics.median(each) for each in times)
    return silent_us, watched_us, written_us


@contextlib.contextmanager
def attached(url: str, viewers: Viewers) -> Iterator[None]:
    """The viewers are there for as long as the context lasts."""
    address = urllib.parse.urlsplit(url)
    with contextlib.ExitStack() as stack:
        for _ in range(viewers.stuck):
            place = (str(address.hostname), address.port)
            stack.enter_context(socket.create_connection(place, timeout=60)).sendall(LIVE)
        if viewers.reading:
            stack.enter_context(crowd("watching", url, viewers.reading))
        yield


def count_tokens(client: httpx.Client) -> tuple[float, int]:
    """The moment at which the server's count of generated tokens moves on, and what it is then."""
    before = None
    while True:
        found = metric(client, "generation_tokens_total")
        if before not in {None, found}:
            return time.perf_counter(), int(found)
        before = found
        time.sleep(0.005)


@attrs.frozen
class Figures:
    """One measurement: tokens per second, and milliseconds of CPU time per thousand tokens of either process."""

    tok_s: float
    engine_ms: float
    http_ms: float


def measure_server(url: str, given: argparse.Namespace) -> dict[Viewers, list[Figures]]:
    """What each crowd leaves of the server, once per round; the first round warms up and does not count."""
    server = next(each for each in psutil.Process().children() if each.children())
    engine = next(each for each in server.children() if "engine_host" in " ".join(each.cmdline()))
    seen: dict[Viewers, list[Figures]] = {viewers: [] for viewers in CROWDS}
    asking = crowd("asking", url, given.streams, "completions", given.input_len, given.output_len)
    with asking, httpx.Client(base_url=url) as client:
        for number in range(given.rounds + 1):
            for viewers in random.sample(CROWDS, len(CROWDS)):
                with attached(url, viewers):
                    figures = measure_window(client, engine, server, given.seconds)
                if number:
                    seen[viewers].append(figures)
    return seen


def measure_window(
    client: httpx.Client, engine: psutil.Process, server: psutil.Process, seconds: float
) -> Figures:
    """What the server does in so many seconds."""
    cpu = cpu_seconds(engine), cpu_seconds(server)
    began, before = count_tokens(client)
    time.sleep(seconds)
    now, after = count_tokens(client)
    spent = cpu_seconds(engine) - cpu[0], cpu_seconds(server) - cpu[1]
    return Figures((after - before) / (now - began), *(1e6 * each / (after - before) for each in spent))


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has used so far, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def turns_table(steps: int) -> Table:
    """What a log costs the engine's thread."""
    table = Table("rows", "turn", "turn with a log", "writing it out", title="us per steady decode turn")
    for rows in (1, 64, 256):
        table.add_row(f"{rows}", *(f"{figure:.1f}" for figure in measure_turns(rows, steps)))
    return table


def server_table(seen: Mapping[Viewers, Sequence[Figures]]) -> Table:
    """What viewers cost a server; the difference is between figures of the same round."""
    columns = ("viewers", "median tok/s", "least", "most", "difference: median", "mean")
    table = Table(*columns, "engine CPU ms/ktok", "HTTP CPU ms/ktok", title="throughput")
    alone = [each.tok_s for each in seen[CROWDS[0]]]
    for viewers, figures in seen.items():
        speeds = [each.tok_s for each in figures]
        changes = [100 * (each / base - 1) for each, base in zip(speeds, alone, strict=True)]
        table.add_row(
            str(viewers),
            *(f"{figure:,.0f}" for figure in (statistics.median(speeds), min(speeds), max(speeds))),
            f"{statistics.median(changes):+.2f} %",
            f"{statistics.fmean(changes):+.2f} ± {statistics.stdev(changes) / len(changes) ** 0.5:.2f} %",
            f"{statistics.median(each.engine_ms for each in figures):.1f}",
            f"{statistics.median(each.http_ms for each in figures):.1f}",
        )
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("engine", nargs="*")
    given = parser.parse_args()
    console = Console(width=132)
    console.print(turns_table(given.steps))
    with serving(given.model, ["--no-spare", *given.engine]) as url:
        console.print(server_table(measure_server(url, given)))


if __name__ == "__main__":
    main()
