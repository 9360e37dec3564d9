"""Traffic as it comes: classes of requests sent to one or several servers, and a table of what became of them.

    python -m benchmarks.traffic [--url URL ...] [--classes chat rag ...] [--requests 64] [--scale 1] [--seed N]
                                 [--ttft-limit 1000] [--gap-limit 200] [--capacity REQ/S] [--json FILE] [--plot FILE]
    python -m benchmarks.traffic --trace FILE [--seconds S] ...

Any server with OpenAI's `/v1/completions` will do. Several get every class in turn, with the same prompts and lengths, and
the table has the ratios of the first to the others. `benchmarks.traffic_classes` describes the classes. Prompts are ids where
every server takes them, otherwise words. A conversation goes on with the answer's ids where the server returns them, with its
text where prompts are words, and otherwise with ids drawn beforehand. With `--trace` the requests of a published trace (Mooncake's or
Azure's, as `nanoserve simulate --requests` reads them) come at their moments, in place of classes. Without `--seed` prompts are new in each run; a server
that gets the same seed again finds the prompts in its prefix cache.
"""

from __future__ import annotations

import argparse
import math
import random
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import attrs
from rich import box

from benchmarks.traffic_classes import (
    CAPACITY,
    CLASSES,
    Session,
    TrafficClass,
    draw_sessions,
    traced_sessions,
)
from benchmarks.traffic_servers import TrafficServer, raise_unanswered
from nanoserve.entrypoints.bench.report import (
    check_plot,
    check_writable,
    doing,
    head,
    number,
    show,
    table,
    write_report,
)
from nanoserve.entrypoints.bench.serving.client import (
    OK,
    Connections,
    OfferedLoad,
    RequestShape,
    run_loop,
)
from nanoserve.entrypoints.bench.serving.level import LoadLevel, judge
from nanoserve.entrypoints.bench.serving.request_files import read_requests
from nanoserve.entrypoints.client.server import open_server, read_address
from nanoserve.ports.errors import BadValueError, NanoserveError

COLUMNS: Final = {
    "output_tok_s": "output tok/s",
    "prompt_tok_s": "prompt tok/s",
    "cached_tokens": "cached tokens",
    "ttft_p50_ms": "TTFT ms, p50",
    "ttft_p99_ms": "TTFT ms, p99",
    "gap_p50_ms": "gap ms, p50",
    "gap_p99_ms": "gap ms, p99",
    "goodput_req_s": "goodput req/s",
    "errors": "errors",
}


@attrs.frozen(kw_only=True)
class TrafficRow:
    """What one class showed on one server; of `planned` requests those after a failed turn have not been sent."""

    name: str
    server: str
    planned: int
    level: LoadLevel
    cached_tokens: int | None
    num_short: int

    @property
    def figures(self) -> dict[str, float]:
        """Rates per second, latencies in milliseconds; NaN where there is nothing."""
        level = self.level
        latencies = {"ttft": level.latencies["ttft"], "gap": level.latencies["itl"]}
        return {
            "output_tok_s": level.output_tok_s,
            "prompt_tok_s": level.prompt_tokens * level.request_s,
            "cached_tokens": float("nan") if self.cached_tokens is None else self.cached_tokens,
            **{
                f"{name}_{each}_ms": found[each]
                for name, found in latencies.items()
                for each in ("p50", "p99")
            },
            "goodput_req_s": level.goodput or 0.0,
            "errors": self.planned - level.completed,
        }

    def ratios(self, other: TrafficRow) -> dict[str, float]:
        """This row's figures over the other's; NaN where there is no ratio."""
        theirs = other.figures
        return {name: each / (theirs[name] or float("nan")) for name, each in self.figures.items()}

    def remarks(self) -> Iterator[str]:
        """What the figures do not say."""
        level, short = self.level, "answers with fewer tokens than were asked for"
        failures = [(count, result) for result, count in level.results.items() if result != OK]
        said = [f"{count} x {result}: {level.messages.get(result, '')}" for count, result in failures]
        for each in (*said, *[f"{self.num_short} {short}"] * bool(self.num_short), *level.doubts):
            yield f"{self.name} at {self.server}: {each}"


async def measure(
    servers: Sequence[TrafficServer], given: argparse.Namespace, rows: list[TrafficRow]
) -> None:
    """Add a row for each class and server; raises where a server answers none of a class's requests."""
    traced = [] if given.trace is None else read_requests(given.trace)
    try:
        for server in servers:
            with doing(f"warming up {server.label}"):
                await server.warm_up(given.scale)
        takes_ids = all(each.takes_ids for each in servers)
        for server in servers:
            server.takes_ids = takes_ids
        if given.trace is not None:
            sessions = traced_sessions([each for each in traced if each.at < given.seconds], given.scale)
            rows += [await _measure_class(each, "trace", sessions, OfferedLoad(), given) for each in servers]
            return
        capacity = given.capacity
        for traffic in chosen(given):
            sessions = draw_sessions(traffic, given.requests, given.seed, capacity)
            load = OfferedLoad(rate=traffic.load and traffic.load * capacity)
            new = [await _measure_class(server, traffic.name, sessions, load, given) for server in servers]
            rows += new
            if traffic.name == CAPACITY.name and given.capacity is None:
                capacity = new[0].level.request_s
    finally:
        for server in servers:
            server.connections.close()


async def _measure_class(
    server: TrafficServer,
    name: str,
    sessions: Sequence[Session],
    load: OfferedLoad,
    given: argparse.Namespace,
) -> TrafficRow:
    title, before = f"{name} at {server.label}", server.connections.num_answers
    with doing(title, lambda: f"{server.connections.num_answers - before} answered"):
        run = await server.send(sessions)
    answers = server.turns(run)
    raise_unanswered(title, answers)
    done = [each for each in answers if each.result == OK]
    told = [cached for *_, cached in (each.read() for each in done) if cached is not None]
    return TrafficRow(
        name=name,
        server=server.label,
        planned=sum(len(each.turns) for each in sessions),
        level=judge(load, run, {"ttft": given.ttft_limit, "itl": given.gap_limit}),
        cached_tokens=sum(told) if told else None,
        num_short=sum(each.output_tokens < each.turn.output_len for each in done),
    )


def chosen(given: argparse.Namespace) -> list[TrafficClass]:
    """The classes asked for, at their scale."""
    return [each.scaled(given.scale) for name in given.classes for each in CLASSES[name]]


def find_servers(given: argparse.Namespace) -> list[TrafficServer]:
    """The servers under load; raises where one is not there, or its context too short for a class."""
    servers: list[TrafficServer] = []
    most = max(chosen(given), key=lambda each: each.longest)
    for label, url in zip(string.ascii_uppercase, given.url, strict=False):
        address = read_address(url, given.api_key)
        with open_server(address) as server:
            model, version = server.find_model(given.model), server.facts("/version")
        if given.trace is None and model.max_model_len is not None and most.longest > model.max_model_len:
            fits = math.floor(1000 * given.scale * model.max_model_len / most.longest) / 1000
            needs = (
                f"{most.name} needs a context of {most.longest} tokens and {url} has {model.max_model_len}"
            )
            raise BadValueError("scale", f"{needs}: try --scale {fits:g}, or other --classes")
        empty: dict[str, Any] = {"input_len": 0, "output_len": 0, "vocab_size": 1, "fields": {}}
        shape = RequestShape(address=address, endpoint="completions", model=model.id, **empty)
        servers.append(TrafficServer(label, shape, version, Connections(address), given.client_timeout))
    return servers


def show_rows(servers: Sequence[TrafficServer], rows: Sequence[TrafficRow], title: str) -> None:
    """Print the table: a line per class and server, and the ratios of the first server to the others."""
    lines = []
    for row in rows:
        heading = f"{row.name} {row.server}" if len(servers) > 1 else row.name
        lines.append([heading, f"{row.level.completed}/{row.planned}", *_cells(row.figures)])
        first = next(each for each in rows if each.name == row.name)
        if first is not row:
            lines.append([f"  {first.server}/{row.server}", "", *_cells(first.ratios(row))])
    found = table(["class", "answers", *COLUMNS.values()], lines, box=box.SIMPLE_HEAD)
    show(title, *(each.description for each in servers), found)
    show(*(said for row in rows for said in row.remarks()))


def _cells(figures: Mapping[str, float]) -> list[str]:
    return ["" if math.isnan(figures[name]) else number(figures[name]) for name in COLUMNS]


def report(
    servers: Sequence[TrafficServer], rows: Sequence[TrafficRow], given: argparse.Namespace
) -> dict[str, Any]:
    """All numbers, for the JSON file."""
    about = head("traffic")
    return about | {
        "command": about["command"].replace("nanoserve", "python -m benchmarks.traffic", 1),
        "load": {name: each for name, each in vars(given).items() if name != "api_key"},
        "classes": chosen(given),
        "servers": [{"description": each.description, "version": each.version} for each in servers],
        "rows": [
            attrs.asdict(row, filter=attrs.filters.exclude("level")) | row.figures | row.level.record()
            for row in rows
        ],
    }


def draw_bars(path: str, title: str, rows: Sequence[TrafficRow]) -> None:
    """Write a PNG with a panel for each of three figures, and a bar per class and server."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    names = ("output_tok_s", "ttft_p99_ms", "gap_p99_ms")
    figure = Figure(figsize=(13, 2 + 0.3 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axes, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        axes.barh([f"{row.name} {row.server}" for row in rows], [row.figures[name] for row in rows])
        axes.set(xlabel=COLUMNS[name])
    axes.invert_yaxis()
    figure.savefig(path, format="png", dpi=130)


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"traffic: {message}\n")


def parse_arguments() -> argparse.Namespace:
    """Of this process; bad ones end it with one line."""
    parser = _OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", action="append", help="a server; several are compared")
    parser.add_argument("--model", help="its name on the server; otherwise the first one served")
    parser.add_argument("--api-key", help="otherwise OPENAI_API_KEY's")
    parser.add_argument("--classes", nargs="+", choices=list(CLASSES), default=list(CLASSES), metavar="CLASS")
    parser.add_argument("--trace", metavar="FILE", help="send this trace's requests instead of classes")
    parser.add_argument("--seconds", type=float, default=1e9, help="of the trace, from its first request on")
    parser.add_argument("--requests", type=int, default=64, help="of each class, at least")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies lengths and times")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="draws the load")
    parser.add_argument("--capacity", type=float, help="req/s that `steady` takes fractions of")
    parser.add_argument("--ttft-limit", type=float, default=1000.0, help="of goodput, in ms")
    parser.add_argument("--gap-limit", type=float, default=200.0, help="of goodput, longest gap in ms")
    parser.add_argument("--client-timeout", type=float, default=600.0, help="seconds for an answer")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    given = parser.parse_args()
    for name, value in vars(given).items():
        if isinstance(value, int | float) and name != "seed" and not 0 < value < math.inf:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {value:g}")
    given.url = given.url or ["http://127.0.0.1:8000"]
    return given


def run(given: argparse.Namespace) -> int:
    """Measure, print and write; the exit status, which is 1 where a request failed."""
    check_writable(given.json)
    check_plot(given.plot)
    what = given.trace or f"{given.requests} requests of each class"
    title = f"traffic: {what}, scale {given.scale:g}, seed {given.seed}"
    servers, status = find_servers(given), 0
    rows: list[TrafficRow] = []
    try:
        run_loop(measure(servers, given, rows))
    except (KeyboardInterrupt, NanoserveError) as error:
        print(f"traffic: {str(error) or 'interrupted'}", file=sys.stderr)
        status = 1 if str(error) else 130
    if rows:
        show_rows(servers, rows, title)
        write_report(given.json, report(servers, rows, given))
        if given.plot is not None:
            draw_bars(given.plot, title, rows)
    return status or int(any(row.figures["errors"] for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(run(parse_arguments()))
    except (KeyboardInterrupt, NanoserveError, OSError) as error:
        sys.exit(f"traffic: {str(error) or 'interrupted'}")
