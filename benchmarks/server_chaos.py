"""What a server does when its clients and its engine misbehave: times and sizes, over real sockets and processes.

    python -m benchmarks.server_chaos [--only NAME ...] [--overload-seconds N] [--soak-requests N]

The scenarios are those of `tests/chaos`, at full length; here they are measured, there they are judged. `nanoserve
serve` runs the embedded model on one thread (texts are compared in float32), 32 sequences at once, and at most 64 requests wait. Probes and metrics are
read by a process of its own; the clients of the load share one, whose own delay is printed with what it saw.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.chaos_load import OpenLoop, closed_loop, open_loop, quantile, refused_one_by_one
from tests.chaos.faulty_engine import FATAL, marked
from tests.chaos.losing import lose, undisturbed
from tests.chaos.soak import Look, slope, soak
from tests.chaos.storm import storm
from tests.chaos.subject import BOUNDS, EXACT, Subject, serving
from tests.chaos.watching import Scrape, Watch, until
from tests.chaos.wire import Outcome, complete

MIB = 2**20
Row = tuple[str, str]


def _look_on(port: int, stop: Any, seen: Any) -> None:
    """A process of its own: it looks until it is told to stop, and hands over what it saw."""
    watch = Watch()

    async def look() -> None:
        while not stop.is_set():
            await watch.look(port)
            await asyncio.sleep(0.02)

    asyncio.run(look())
    seen.put(watch)


@contextmanager
def _watching(port: int) -> Iterator[list[Watch]]:
    """Fills the list when the body has ended."""
    context = multiprocessing.get_context("spawn")
    stop, seen = context.Event(), context.Queue()
    process = context.Process(target=_look_on, args=(port, stop, seen))
    process.start()
    found: list[Watch] = []
    try:
        yield found
    finally:
        stop.set()
        found.append(seen.get(timeout=60))
        process.join()


def _ms(seconds: Sequence[float]) -> str:
    """Median, 99th percentile and the most."""
    if not seconds:
        return "none"
    parts = (quantile(seconds, 0.5), quantile(seconds, 0.99), max(seconds))
    return " / ".join(f"{each * 1000:.1f}" for each in parts) + f" ms of {len(seconds)}"


def _growth(scrapes: Sequence[Scrape], process: str) -> str:
    sizes = [each.memory[process] for each in scrapes if process in each.memory]
    return f"{(sizes[-1] - sizes[0]) / MIB:+.1f} MiB, at most {(max(sizes) - sizes[0]) / MIB:+.1f}"


def measure_storm(subject: Subject) -> Iterator[Row]:
    """Five hundred hang-ups, ninety clients at a time."""
    passed = asyncio.run(storm(subject.port, hang_ups=500, at_once=90))
    before, last, after = passed.before, passed.last, passed.after
    yield "moments", ", ".join(f"{count} {name}" for name, count in sorted(passed.moments.items()))
    yield "all free after the last", f"{passed.seconds * 1000:.0f} ms, {after.steps - last.steps} steps"
    yield (
        "running, waiting, blocks in use, leaked",
        f"{after.running}, {after.waiting}, {after.used:g}, {after.leaked}",
    )
    yield "steps", f"{after.steps - before.steps}"
    yield (
        "tokens",
        f"{after.generated - before.generated} of {(after.accepted - before.accepted) * 400} asked for",
    )


def measure_overload(subject: Subject, seconds: float) -> Iterator[Row]:
    """Five times what a closed loop of as many clients as rows gets through."""
    capacity, usual = asyncio.run(closed_loop(subject.port, 15.0))
    full, filled = asyncio.run(closed_loop(subject.port, 15.0, clients=96))
    yield "capacity", f"{capacity:.1f} requests/s of 16 -> 64 tokens with 32 clients, {full:.1f} with 96"
    with _watching(subject.port) as looks:
        load = asyncio.run(open_loop(subject.port, 5 * capacity, seconds))
        asyncio.run(until(subject.port, lambda seen: seen.is_idle))
    yield from _flood_rows(load, usual, filled)
    yield "refusal by the server's log", _ms(_refusals_in_log(subject))
    alone = asyncio.run(refused_one_by_one(subject.port, 300))
    yield "refusal, one at a time", _ms([each.seconds for each in alone if each.status == 503])
    yield "probe (livez, readyz, health)", _ms(looks[0].latencies)
    yield from ((f"memory, {name}", _growth(looks[0].scrapes, name)) for name in ("http", "engine"))
    yield "unbalanced books", f"{len(looks[0].unbalanced)} of {len(looks[0].scrapes)}"


def _flood_rows(load: OpenLoop, usual: Sequence[Outcome], filled: Sequence[Outcome]) -> Iterator[Row]:
    flood = load.flood
    sent = len(flood.accepted) + len(flood.refused) + len(flood.odd)
    yield (
        "sent",
        f"{sent} in {load.seconds:.0f} s; the load's clock was late by {load.late * 1000:.0f} ms at most",
    )
    yield "accepted, refused, other", f"{len(flood.accepted)}, {len(flood.refused)}, {len(flood.odd)}"
    yield "served", f"{len(flood.accepted) / load.seconds:.1f} requests/s"
    for name, outcomes in (("32 clients", usual), ("96 clients", filled), ("overload", flood.accepted)):
        yield f"end to end, {name}", _ms([each.seconds for each in outcomes])
        gaps = [(each.seconds - (each.first or 0.0)) / 63 for each in outcomes]
        yield f"per token after the first, {name}", _ms(gaps)
    yield "refusal as the client saw it", _ms([each.seconds for each in flood.refused])
    with_hint = sum("retry-after" in each.headers for each in flood.refused)
    yield "refusals with Retry-After", f"{with_hint} of {len(flood.refused)}"


def _refusals_in_log(subject: Subject) -> list[float]:
    return [each["seconds"] for each in subject.log("request") if each.get("status") == 503]


def measure_loss(subject: Subject) -> Iterator[Row]:
    """Fifty streams and ten whole answers, and the engine goes."""
    expected = [each.text for each in asyncio.run(undisturbed(subject.port))]

    async def kill() -> None:
        subject.kill_engine(signal.SIGKILL)

    async def freeze() -> None:
        subject.kill_engine(signal.SIGSTOP)

    async def run_into_a_bug() -> None:
        await complete(subject.port, {"prompt": marked(FATAL), "max_tokens": 2, "ignore_eos": True})

    strikes = {"SIGKILL": kill, "SIGSTOP, noticed after 4 s": freeze, "raises outside a step": run_into_a_bug}
    for name, strike in strikes.items():
        with _watching(subject.port) as looks:
            loss = asyncio.run(lose(subject.port, strike))
        same = sum(
            each.is_whole and each.text == text for each, text in zip(loss.outcomes, expected, strict=True)
        )
        cut = sum(each.done and each.error is not None for each in loss.outcomes)
        yield (
            f"{name}: away",
            f"{loss.away:.2f} s ({subject.log('the engine is back')[-1]['seconds']} s to start anew)",
        )
        yield f"{name}: 60 requests", f"{same} whole with the same text, {cut} ended in their stream"
        yield f"{name}: probes", _ms(looks[0].latencies)
        unbalanced = f"{len(looks[0].unbalanced)} of {len(looks[0].scrapes)}"
        yield f"{name}: unbalanced books", f"{unbalanced}, restarts {looks[0].scrapes[-1].restarts}"


def measure_soak(subject: Subject, requests: int) -> Iterator[Row]:
    """Small requests of every kind."""
    looks: list[Look] = []
    began = time.monotonic()
    asyncio.run(soak(subject, requests, looks.append))
    yield "requests", f"{requests} in {time.monotonic() - began:.0f} s"
    for process in ("http", "engine"):
        sizes = [each.memory[process] / MIB for each in looks]
        yield f"memory, {process}", ", ".join(f"{each:.0f}" for each in sizes[::4]) + " MiB, by fifths"
        yield f"growth in the second half, {process}", f"{slope(looks, process):.0f} bytes per request"
        yield (
            f"open files, {process}",
            " to ".join(str(each.files[process]) for each in (looks[1], looks[-1])),
        )
    yield "leaked blocks", f"{max(each.books.leaked for each in looks)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=("storm", "overload", "loss", "soak"))
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--soak-requests", type=int, default=10_000)
    given = parser.parse_args()
    scenarios: dict[str, Callable[[Subject], Iterator[Row]]] = {
        "storm": measure_storm,
        "overload": lambda subject: measure_overload(subject, given.overload_seconds),
        "loss": measure_loss,
        "soak": lambda subject: measure_soak(subject, given.soak_requests),
    }
    console = Console(width=160)
    for name in given.only or scenarios:
        table = Table("what", "measured", title=f"{name}, load average before {os.getloadavg()[0]:.1f}")
        arguments = (*BOUNDS, *EXACT) if name == "loss" else BOUNDS
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(pathlib.Path(folder), *arguments, small_caches=False) as subject,
        ):
            for row in scenarios[name](subject):
                table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main()
