"""What watching costs: a server's throughput with nobody, one and ten viewers at `/live`, and a turn's time with a log.

    python -m benchmarks.viewers [--model FOLDER] [--streams 32] [--input-len 64] [--output-len 256] [--rounds 7]
                                 [--steps 2000] [-- ENGINE OPTIONS]

One server, one run: in each round every crowd of viewers is attached in turn, in an order drawn anew, while the same
requests are answered. The viewers share a process of their own and read all they are sent; the last crowd has one more
that never reads. Differences are between a round's own measurements, and the table has the median of them.

Before that, without any server: microseconds of `Engine.turn` over a runner that computes nothing, without and with a
step log, and what writing the log out adds to each turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.control_plane import build_engine
from benchmarks.control_plane import measure_turns as turns_of
from benchmarks.http_overhead import serving
from nanoserve.adapters.trace.codec import JsonTraceFormat

BATCH: Final = 20
"""Turns that are measured and written out together, as many as ten parts of a log per second hold of fast ones."""
ATTACHED: Final = "attached"
LIVE: Final = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


@attrs.frozen
class Crowd:
    """Viewers that read, and viewers that do not."""

    reading: int
    stuck: int = 0

    def __str__(self) -> str:
        return f"{self.reading}" + (f" and {self.stuck} that never reads" if self.stuck else "")


CROWDS: Final = (Crowd(0), Crowd(1), Crowd(10), Crowd(10, stuck=1))


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


def connect(url: str) -> socket.socket:
    """A connection to the server."""
    address = urllib.parse.urlsplit(url)
    return socket.create_connection((str(address.hostname), address.port), timeout=60)


async def view(url: str, count: int) -> None:
    """Be so many viewers until killed; says when all have begun to see steps."""
    address = urllib.parse.urlsplit(url)

    async def attach() -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**24)
        writer.write(LIVE)
        await reader.readuntil(b"event: trace")
        return reader

    async def read(reader: asyncio.StreamReader) -> None:
        while await reader.read(2**16):
            pass

    readers = await asyncio.gather(*(attach() for _ in range(count)))
    print(ATTACHED, flush=True)
    await asyncio.gather(*(read(each) for each in readers))


@contextlib.contextmanager
def attached(url: str, crowd: Crowd) -> Iterator[None]:
    """The viewers are there for as long as the context lasts."""
    with contextlib.ExitStack() as stack:
        for _ in range(crowd.stuck):
            stack.enter_context(connect(url)).sendall(LIVE)
        if crowd.reading:
            command = [sys.executable, "-m", "benchmarks.viewers", "--view", url, str(crowd.reading)]
            viewers = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(viewers.kill)
            assert viewers.stdout is not None
            if viewers.stdout.readline().strip() != ATTACHED:
                raise SystemExit("the viewers could not be attached")
        yield


async def answer(url: str, number: int, input_len: int, output_len: int) -> None:
    """Ask for a streamed answer of a fixed length, and read it."""
    address = urllib.parse.urlsplit(url)
    prompt = [20 + (number * 7 + place) % 900 for place in range(input_len)]
    asked = {"prompt": prompt, "max_tokens": output_len, "ignore_eos": True, "temperature": 0, "stream": True}
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
    tail = b""
    while data := await reader.read(2**16):
        tail = (tail + data)[-64:]
    writer.close()
    if b"[DONE]" not in tail:
        raise SystemExit(f"an answer broke off: {tail!r}")


async def throughput(url: str, streams: int, input_len: int, output_len: int) -> float:
    """Tokens per second of so many answers at once."""
    began = time.perf_counter()
    await asyncio.gather(*(answer(url, number, input_len, output_len) for number in range(streams)))
    return streams * output_len / (time.perf_counter() - began)


@attrs.frozen
class Figures:
    """One measurement: tokens per second, and milliseconds of CPU time per thousand tokens of either process."""

    tok_s: float
    engine_ms: float
    http_ms: float


def measure_server(url: str, given: argparse.Namespace) -> dict[Crowd, list[Figures]]:
    """What each crowd leaves of the server, once per round."""
    load = (given.streams, given.input_len, given.output_len)
    server = next(each for each in psutil.Process().children() if each.children())
    [engine] = server.children()
    asyncio.run(throughput(url, *load))
    seen: dict[Crowd, list[Figures]] = {crowd: [] for crowd in CROWDS}
    for number in range(given.rounds):
        for crowd in random.sample(CROWDS, len(CROWDS)):
            with attached(url, crowd):
                before = cpu_seconds(engine), cpu_seconds(server)
                tok_s = asyncio.run(throughput(url, *load))
                spent = cpu_seconds(engine) - before[0], cpu_seconds(server) - before[1]
            kilotokens = given.streams * given.output_len / 1e3
            seen[crowd].append(Figures(tok_s, *(1e3 * seconds / kilotokens for seconds in spent)))
        figures = ", ".join(f"{crowd}: {each[-1].tok_s:,.0f}" for crowd, each in seen.items())
        print(f"round {number + 1}: tok/s with viewers {figures}", flush=True)
    return seen


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


def server_table(seen: Mapping[Crowd, Sequence[Figures]]) -> Table:
    """What viewers cost a server; the difference is between figures of the same round."""
    columns = ("viewers", "median tok/s", "least", "most", "difference", "least", "most")
    table = Table(*columns, "engine CPU ms/ktok", "HTTP CPU ms/ktok", title="throughput")
    alone = [each.tok_s for each in seen[CROWDS[0]]]
    for crowd, figures in seen.items():
        speeds = [each.tok_s for each in figures]
        changes = [100 * (each / base - 1) for each, base in zip(speeds, alone, strict=True)]
        table.add_row(
            str(crowd),
            *(f"{figure:,.0f}" for figure in (statistics.median(speeds), min(speeds), max(speeds))),
            *(f"{figure:+.2f} %" for figure in (statistics.median(changes), min(changes), max(changes))),
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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--view", nargs=2, metavar=("URL", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("engine", nargs="*")
    given = parser.parse_args()
    if given.view:
        asyncio.run(view(given.view[0], int(given.view[1])))
        return
    console = Console(width=132)
    console.print(turns_table(given.steps))
    with serving([] if given.model is None else [given.model], given.engine) as url:
        console.print(server_table(measure_server(url, given)))


if __name__ == "__main__":
    main()
