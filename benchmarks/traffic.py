"""Traffic as it comes: classes of requests sent to one or several servers, and a table of what became of them.

    python -m benchmarks.traffic [--url URL ...] [--classes chat rag ...] [--requests 64] [--scale 1] [--seed N]
                                 [--ttft-limit 1000] [--gap-limit 200] [--capacity REQ/S] [--json FILE] [--plot FILE]
    python -m benchmarks.traffic --trace FILE [--seconds S] ...

Any server with OpenAI's `/v1/completions` will do. Several get every class in turn, with the same prompts and lengths, and
the table has the ratios of the first to the others. `benchmarks.traffic_classes` describes the classes. Prompts are ids where
the server takes them, otherwise words. A conversation goes on with the answer's ids where the server returns them, with its
text where prompts are words, and otherwise with ids drawn beforehand. With `--trace` the requests of a published trace (Mooncake's or
Azure's, as `nanoserve simulate --requests` reads them) come at their moments, in place of classes. Without `--seed` prompts are new in each run; a server
that gets the same seed again finds the prompts in its prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import string
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import attrs
import msgspec
from rich import box

from benchmarks.traffic_classes import (
    CAPACITY,
    CHAT,
    CLASSES,
    Session,
    TrafficClass,
    Turn,
    draw_sessions,
    traced_sessions,
)
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
    HEAD_START,
    OK,
    WORDS,
    Connections,
    LoadRun,
    OfferedLoad,
    Outcome,
    RequestShape,
    observe,
    run_loop,
)
from nanoserve.entrypoints.bench.serving.level import LoadLevel, judge
from nanoserve.entrypoints.bench.serving.request_files import read_requests
from nanoserve.entrypoints.client.server import (
    DONE,
    EventReader,
    ServerRefusedError,
    open_server,
    read_address,
)
from nanoserve.ports.errors import BadValueError, NanoserveError

WARMUP: Final = 16
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
Prompt = list[int] | str


@attrs.define(kw_only=True)
class TurnAnswer(Outcome):
    """The answer of one turn, which keeps its events to be read when the clock no longer matters."""

    turn: Turn
    _body: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, piece: bytes, now: float) -> None:
        """Read a piece as it comes."""
        self._body += piece
        super().feed(piece, now)

    def read(self) -> tuple[str, list[int], int | None]:
        """A complete answer's text, its ids and its prompt's cached tokens, as far as the server tells them."""
        events = [msgspec.json.decode(data) for data in EventReader().feed(bytes(self._body)) if data != DONE]
        choices = [each for event in events for each in event.get("choices") or ()]
        usages = [event["usage"].get("prompt_tokens_details") or {} for event in events if event.get("usage")]
        text = "".join(each.get("text") or "" for each in choices)
        token_ids = [token for each in choices for token in each.get("token_ids") or ()]
        return text, token_ids, usages[-1].get("cached_tokens") if usages else None


@attrs.define
class TrafficServer:
    """One server under load; `label` stands for it in the table, `shape` has no prompt and no lengths.

    Attributes:
        takes_ids: prompts are ids and not words.
        is_exact: the server knows `ignore_eos`, so that answers have the length asked for.
    """

    label: str
    shape: RequestShape
    version: Mapping[str, Any]
    connections: Connections
    limit: float
    takes_ids: bool = True
    is_exact: bool = True

    @property
    def description(self) -> str:
        """Where it is, and how it is asked."""
        prompts = "ids" if self.takes_ids else "words"
        ends = "exact lengths" if self.is_exact else "answers may end early"
        return f"{self.label}: {self.shape.model} at {self.shape.address.url}, prompts of {prompts}, {ends}"

    async def warm_up(self, scale: float) -> None:
        """Find out what the server takes, and let it warm up; raises where it answers nothing."""
        probe = Session(0.0, (Turn(tuple(range(20, 52)), 4, 0.0),) * 2)
        for self.is_exact, self.takes_ids in itertools.product((True, False), repeat=2):
            answers = self.turns(await self.send([probe]))
            if answers[-1].result not in {"400", "422"}:
                break
        raise_unanswered(f"the first request to {self.label}", answers)
        traffic = attrs.evolve(CHAT, name="warm-up").scaled(scale)
        await self.send(draw_sessions(traffic, WARMUP, random.randrange(2**32)))

    async def send(self, sessions: Sequence[Session]) -> LoadRun:
        """Let every session come at its moment; the answers of the run are `TurnAnswer`s of all turns that were sent."""
        answers: list[TurnAnswer] = []
        firsts = [self._extend([] if self.takes_ids else "", each, 0) for each in sessions]

        async def send_all(began: float) -> Sequence[Outcome]:
            async with asyncio.TaskGroup() as group:
                for session, first in zip(sessions, firsts, strict=True):
                    group.create_task(self._hold(session, first, began, answers))
            return answers

        return await observe(send_all, HEAD_START)

    @staticmethod
    def turns(run: LoadRun) -> list[TurnAnswer]:
        """The answers of a run, in the order in which they were asked for."""
        return [each for each in run.answers if isinstance(each, TurnAnswer)]

    async def _hold(
        self, session: Session, first: tuple[Prompt, bytes], began: float, answers: list[TurnAnswer]
    ) -> None:
        """Send the turns of a session one after the other, up to one that fails."""
        (prompt, request), due = first, began + session.start
        for place, turn in enumerate(session.turns, start=1):
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            answer = TurnAnswer(scheduled=due, turn=turn)
            answers.append(answer)
            await self.connections.ask(request, answer, self.limit)
            if answer.result != OK or place == len(session.turns):
                return
            due = answer.ended + session.turns[place].pause
            text, token_ids, _ = answer.read()
            drawn = itertools.islice(itertools.cycle(turn.tokens), turn.output_len)
            answered = prompt + text if isinstance(prompt, str) else [*prompt, *(token_ids or drawn)]
            prompt, request = self._extend(answered, session, place)

    def _extend(self, prompt: Prompt, session: Session, place: int) -> tuple[Prompt, bytes]:
        """The prompt with what is new in a turn behind it, and its request."""
        turn = session.turns[place]
        if isinstance(prompt, str):
            prompt = " ".join([prompt, *(WORDS[token % len(WORDS)] for token in turn.tokens)])
        else:
            prompt = [*prompt, *turn.tokens]
        fields: dict[str, Any] = {"temperature": 0.6}
        if self.is_exact:
            fields |= {"ignore_eos": True}
        if self.takes_ids and turn is not session.turns[-1]:
            fields |= {"return_token_ids": True}
        shape = attrs.evolve(self.shape, output_len=turn.output_len, fields=fields)
        return prompt, shape.request({"prompt": prompt})


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


def raise_unanswered(what: str, answers: Sequence[Outcome]) -> None:
    """Raise `ServerRefusedError` where nothing was answered, with what became of the last request."""
    last = answers[-1]
    if not any(each.result == OK for each in answers):
        raise ServerRefusedError(f"{what}: no answer, {last.result}: {last.message or 'no reason given'}")


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
    except (NanoserveError, OSError) as error:
        sys.exit(f"traffic: {error}")
