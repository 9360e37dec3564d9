"""What is known of the server, and how it looks: a table with sparklines in a terminal, one plain line elsewhere."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.client.top.following import (
    LatencyQuantiles,
    ServerDescription,
    ServerLost,
    ServerStatus,
    ServerUpdate,
)
from nanoserve.entrypoints.client.top.recent import SECONDS, RecentStatuses
from nanoserve.entrypoints.compose.printable import printable

STATE_STYLES: Final = {"ready": "bold green", "failed": "bold red", "stopped": "bold red"}
NARROW: Final = 60
"""Columns below which there is no room for sparklines."""
KV_BLOCKS: Final = "KV blocks"
_NAMES, _VALUES = 13, 26
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS: Final = "_.:-=+*#"


@attrs.define
class TopBoard:
    """The newest of everything; while the server is `lost`, the rest is what it said last."""

    url: str
    server: ServerDescription = attrs.field(factory=ServerDescription)
    recent: RecentStatuses = attrs.field(factory=RecentStatuses)
    lost: ServerLost | None = None

    def take(self, update: ServerUpdate, now: float) -> None:
        """Note what came at this reading of a clock that never goes back."""
        match update:
            case ServerStatus():
                self.recent.take(now, update)
                self.lost = None
            case ServerDescription():
                self.server = update
                self.lost = None
            case ServerLost():
                self.lost = update


def view(board: TopBoard, console: Console, *, keys: bool = False) -> RenderableType:
    """Everything; the last numbers dimmed where the server is lost. `keys`: say how to leave."""
    status = board.recent.last
    parts: list[RenderableType] = [_title(board, status), Text()]
    if board.lost is not None:
        text = f"lost: {printable(board.lost.reason)}; trying again every {board.lost.pause:g} s"
        parts += [Text(text, style="bold red"), Text()]
    if status is None:
        parts.append(Text("no status yet"))
    else:
        parts.append(_numbers(board, status, console))
    if keys:
        parts += [Text(), Text("q leaves", style="dim")]
    return Group(*parts)


def line(board: TopBoard) -> str:
    """One line with all figures, the wall clock in front."""
    now, status = time.strftime("%H:%M:%S"), board.recent.last
    if board.lost is not None:
        return f"{now} lost: {printable(board.lost.reason)}"
    if status is None:
        return f"{now} no status yet"
    figures = [f"{name} {text}" for name, text, _ in _figures(board.recent, status)]
    return " | ".join([f"{now} {printable(status.state)}", *figures])


def _figures(recent: RecentStatuses, status: ServerStatus) -> list[tuple[str, str, list[float]]]:
    """Names, values and the course of the last minute, where it is shown."""
    blocks = status.blocks

    def rate(name: str, unit: str) -> tuple[str, list[float]]:
        count = operator.attrgetter(name)
        return per_second(recent.rate(count), unit), recent.rates(count)

    return [
        ("running", f"{status.running:,}", recent.levels(lambda each: each.running)),
        ("waiting", f"{status.waiting:,}", recent.levels(lambda each: each.waiting)),
        ("generated", *rate("generated_tokens", "tok/s")),
        ("prompt", *rate("prompt_tokens", "tok/s")),
        ("steps", *rate("steps", "steps/s")),
        (
            KV_BLOCKS,
            f"{percent(status.kv_use)} used, {blocks.cached:,} cached of {blocks.total:,}",
            recent.levels(lambda each: each.kv_use),
        ),
        ("prefix hits", f"{percent(status.prefix_hit_rate)} of {status.prefix_queries:,} tokens", []),
        ("preemptions", f"{status.preemptions:,}", recent.rates(lambda each: each.preemptions)),
        ("TTFT", milliseconds(status.ttft), []),
        ("ITL", milliseconds(status.itl), []),
        ("finished", printable(reasons(status.finished)), []),
        ("restarts", f"{status.restarts:,}", []),
        ("viewers", f"{status.viewers:,}", []),
    ]


def _title(board: TopBoard, status: ServerStatus | None) -> Text:
    title = Text("nanoserve top ", style="bold", no_wrap=True, overflow="ellipsis")
    title.append(printable(f"{board.url}  {board.server.name}".rstrip()), style="not bold")
    if status is not None:
        state = "lost" if board.lost is not None else printable(status.state)
        title.append("  ")
        title.append(state, style="bold red" if board.lost else STATE_STYLES.get(state, "bold yellow"))
    return title


def _numbers(board: TopBoard, status: ServerStatus, console: Console) -> Table:
    recent, is_dim = board.recent, board.lost is not None
    room = min(console.width - _NAMES - _VALUES - 4, SECONDS) if console.width >= NARROW else 0
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_NAMES - 2, style="dim", no_wrap=True)
    table.add_column(min_width=_VALUES - 2 if room else 0, no_wrap=True)
    if room:
        table.add_column(no_wrap=True, style="dim cyan" if is_dim else "cyan")

    for name, text, values in _figures(recent, status):
        value = Text(text)
        if name == KV_BLOCKS:
            value = Text("\n").join([_kv_bar(status, console), value])
        if is_dim:
            value.stylize("dim")
        sparks = sparkline(values, room, ascii_only=console.options.ascii_only) if room and values else ""
        table.add_row(name, value, *([Text(sparks)] if room else []))
    return table


def _kv_bar(status: ServerStatus, console: Console) -> Text:
    blocks, width = status.blocks, _VALUES - 2
    total = max(blocks.total, 1)
    used, cached, free = bar([status.kv_use, blocks.cached / total, 1.0], width)
    signs = "#=." if console.options.ascii_only else "█▒░"
    text = Text(signs[0] * used, style="yellow")
    text.append(signs[1] * cached, style="blue")
    text.append(signs[2] * free, style="dim")
    return text


def per_second(rate: float | None, unit: str) -> str:
    """A rate with its unit; a dash where it is not known yet."""
    if rate is None:
        return f"- {unit}"
    return f"{rate:,.0f} {unit}" if rate >= 1000 else f"{rate:.1f} {unit}"


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash where it is not known."""
    return "-" if fraction is None else f"{100 * fraction:.0f}%"


def milliseconds(quantiles: LatencyQuantiles | None) -> str:
    """The median and the 99th percentile."""
    if quantiles is None:
        return "p50 - p99 -"
    return f"p50 {_duration(quantiles.p50)} p99 {_duration(quantiles.p99)}"


def reasons(finished: dict[str, int]) -> str:
    """How many ended for which reason, the most frequent first."""
    ordered = sorted(finished.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{reason} {count:,}" for reason, count in ordered if count) or "none yet"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The last minute, the newest at the right end: several seconds per column where there are fewer columns."""
    sparks = _ASCII_SPARKS if ascii_only else _SPARKS
    per_column = -(-SECONDS // max(width, 1))
    columns = [values[max(end - per_column, 0) : end] for end in range(len(values), 0, -per_column)][::-1]
    means = [sum(each) / len(each) for each in columns]
    highest = max(means, default=0) or 1
    signs = [sparks[round(each / highest * (len(sparks) - 1))] for each in means]
    return "".join(signs).rjust(SECONDS // per_column)


def bar(parts: Sequence[float], width: int) -> list[int]:
    """Columns for each part of a whole of 1: rounded, and never more than `width` together."""
    ends, total = [0], 0.0
    for part in parts:
        total += part
        ends.append(min(round(total * width), width))
    return [after - before for before, after in pairwise(ends)]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:,.0f} ms"
