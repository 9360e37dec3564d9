"""Texts a second that become vectors over HTTP, one in each request, and what they cost the server's processes.

    python -m benchmarks.http_vectors [MODEL] [--instant] [--tokens 512] [--at-once 1 16 128] [--seconds 4] [--clients 4]
                                      [--format base64 | float] [-- OPTIONS OF THE SERVER]

Without a model it is one of bge-base's shape with random weights. `--instant` takes an engine that answers without computing, which shows
what the process that speaks HTTP could do. Clients are processes of their own. CPU time counts all threads of a process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time

import aiohttp

from benchmarks.paced_engine import command
from benchmarks.pooled_models import WORDS, write_encoder
from benchmarks.servers import NANOSERVE, serving, split_options

TEXTS = 256
"""The texts of each client, which it sends again and again: vectors of encoders are never cached."""


async def ask(url: str, seconds: float, at_once: int, bodies: list[bytes]) -> list[float]:
    """Send requests, each as soon as an answer comes; the seconds that each took."""
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    headers = {"content-type": "application/json"}

    async def keep_asking(session: aiohttp.ClientSession, first: int) -> None:
        number = first
        while (began := time.perf_counter()) < ends:
            body = bodies[number % len(bodies)]
            async with session.post(f"{url}/v1/embeddings", data=body, headers=headers) as answer:
                found = await answer.read()
                assert answer.status == 200, found[:300]
            taken.append(time.perf_counter() - began)
            number += at_once

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once)) as session:
        await asyncio.gather(*(keep_asking(session, first) for first in range(at_once)))
    return taken


def run_client(
    url: str, seconds: float, at_once: int, bodies: list[bytes], out: multiprocessing.Queue[list[float]]
) -> None:
    """One process of clients."""
    out.put(asyncio.run(ask(url, seconds, at_once, bodies)))


def make_bodies(tokens: int, encoding: str, seed: int) -> list[bytes]:
    """Requests for texts of so many tokens, two of which are special."""
    draw = random.Random(seed)
    texts = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(tokens - 2)) for _ in range(TEXTS)]
    return [json.dumps({"input": text, "encoding_format": encoding}).encode() for text in texts]


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    numbers = [int(each.name) for each in pathlib.Path("/proc").iterdir() if each.name.isdigit()]
    return [each for each in numbers if int(stat_of(each)[1]) == process]


def stat_of(process: int) -> list[str]:
    """What `/proc` says of a process behind its name; of one that has ended zeros."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def cpu_seconds(process: int) -> float:
    """What a process has used so far."""
    fields = stat_of(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(url: str, at_once: int, given: argparse.Namespace) -> None:
    """Print one line for so many requests at once."""
    (server,) = (
        each
        for each in children(os.getpid())
        if b"serve" in pathlib.Path(f"/proc/{each}/cmdline").read_bytes()
    )
    clients = min(given.clients, at_once)
    bodies = [make_bodies(given.tokens, given.format, seed) for seed in range(clients)]
    for seconds in (1.0, given.seconds):
        processes = [server, *children(server)]
        before, began = [cpu_seconds(each) for each in processes], time.perf_counter()
        out: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
        runs = [
            multiprocessing.Process(target=run_client, args=(url, seconds, at_once // clients, each, out))
            for each in bodies
        ]
        for each in runs:
            each.start()
        taken = sorted(second for _ in runs for second in out.get())
        wall = time.perf_counter() - began
        for each in runs:
            each.join()
    used = [1e3 * (cpu_seconds(each) - was) / len(taken) for each, was in zip(processes, before, strict=True)]
    middle, slow = (1e3 * taken[int(len(taken) * share)] for share in (0.5, 0.99))
    print(
        f"{at_once} at once: {len(taken) / wall:.0f} requests/s of {given.tokens} tokens, p50 {middle:.1f} ms, p99 {slow:.1f} ms; "
        f"CPU a request {used[0]:.2f} ms in HTTP's process, {sum(used[1:]):.2f} ms in the engine's",
        flush=True,
    )


def main() -> None:
    """Start a server, and measure each number of requests at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--instant", action="store_true")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--format", choices=["base64", "float"], default="base64")
    own, server = split_options(sys.argv[1:])
    given = parser.parse_args(own)
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or folder
        if given.model is None:
            write_encoder(pathlib.Path(folder), given.layers)
        with serving(model, server, command(0) if given.instant else NANOSERVE) as url:
            for at_once in given.at_once:
                measure(url, at_once, given)


if __name__ == "__main__":
    main()
