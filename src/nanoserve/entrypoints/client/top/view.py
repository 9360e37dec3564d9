"""What is known of the server, and how it looks: a table with sparklines in a terminal, one plain line elsewhere."""

from __future__ import annotations

import time
from typing import Final

import attrs
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.client.top.figures import (
    bar,
    milliseconds,
    per_second,
    percent,
    reasons,
    sparkline,
)
from nanoserve.entrypoints.client.top.following import Lost, Update
from nanoserve.entrypoints.client.top.recent import SECONDS, Recent
from nanoserve.entrypoints.client.top.status import Server, Status
from nanoserve.entrypoints.compose.printable import printable

STATE_STYLES: Final = {"ready": "bold green", "failed": "bold red", "stopped": "bold red"}
NARROW: Final = 60
"""Columns below which there is no room for sparklines."""
_NAMES, _VALUES = 13, 26


@attrs.define
class Board:
    """The newest of everything; while the server is `lost`, the rest is what it said last."""

    url: str
    server: Server = attrs.field(factory=Server)
    recent: Recent = attrs.field(factory=Recent)
    lost: Lost | None = None

    def take(self, update: Update, now: float) -> None:
        """Note what came at this reading of a clock that never goes back."""
        match update:
            case Status():
                self.recent.take(now, update)
                self.lost = None
            case Server():
                self.server = update
                self.lost = None
            case Lost():
                self.lost = update


def view(board: Board, console: Console, *, keys: bool = False) -> RenderableType:
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


def line(board: Board) -> str:
    """One line that says it all, with the wall clock in front."""
    now, status = time.strftime("%H:%M:%S"), board.recent.last
    if board.lost is not None:
        return f"{now} lost: {printable(board.lost.reason)}"
    if status is None:
        return f"{now} no status yet"
    generated, prompt, steps = _rates(board)
    parts = [
        f"{now} {printable(status.state)}",
        f"restarts {status.restarts}",
        f"running {status.running}",
        f"waiting {status.waiting}",
        f"generated {generated}",
        f"prompt {prompt}",
        steps,
        f"kv {percent(status.kv_use)}",
        f"cached {status.blocks.cached}",
        f"prefix hits {percent(status.prefix_hit_rate)}",
        f"preemptions {status.preemptions}",
        f"ttft {milliseconds(status.ttft)}",
        f"itl {milliseconds(status.itl)}",
        f"finished {printable(reasons(status.finished))}",
    ]
    return " | ".join(parts)


def _title(board: Board, status: Status | None) -> Text:
    title = Text("nanoserve top ", style="bold", no_wrap=True, overflow="ellipsis")
    title.append(printable(f"{board.url}  {board.server.name}".rstrip()), style="not bold")
    if status is not None:
        state = "lost" if board.lost is not None else printable(status.state)
        title.append("  ")
        title.append(state, style="bold red" if board.lost else STATE_STYLES.get(state, "bold yellow"))
    return title


def _numbers(board: Board, status: Status, console: Console) -> Table:
    recent, is_dim = board.recent, board.lost is not None
    room = min(console.width - _NAMES - _VALUES - 4, SECONDS) if console.width >= NARROW else 0
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_NAMES - 2, style="dim", no_wrap=True)
    table.add_column(min_width=_VALUES - 2 if room else 0, no_wrap=True)
    if room:
        table.add_column(no_wrap=True, style="dim cyan" if is_dim else "cyan")

    def row(name: str, value: str | Text, values: list[float] | None = None) -> None:
        shown = value if isinstance(value, Text) else Text(value)
        if is_dim:
            shown.stylize("dim")
        sparks = sparkline(values or [], room, ascii_only=console.options.ascii_only) if room else ""
        table.add_row(name, shown, *([Text(sparks if values else "")] if room else []))

    generated, prompt, steps = _rates(board)
    row("running", f"{status.running:,}", recent.levels(lambda each: each.running))
    row("waiting", f"{status.waiting:,}", recent.levels(lambda each: each.waiting))
    row("generated", generated, recent.rates(lambda each: each.generated_tokens))
    row("prompt", prompt, recent.rates(lambda each: each.prompt_tokens))
    row("steps", steps, recent.rates(lambda each: each.steps))
    row("KV blocks", _kv_bar(status, console), recent.levels(lambda each: each.kv_use))
    row("", _kv_words(status))
    row("prefix hits", f"{percent(status.prefix_hit_rate)} of {status.prefix_queries:,} tokens")
    row("preemptions", f"{status.preemptions:,}", recent.rates(lambda each: each.preemptions))
    row("TTFT", milliseconds(status.ttft))
    row("ITL", milliseconds(status.itl))
    row("finished", printable(reasons(status.finished)))
    row("restarts", f"{status.restarts:,}")
    row("viewers", f"{status.viewers:,}")
    return table


def _kv_bar(status: Status, console: Console) -> Text:
    blocks, width = status.blocks, _VALUES - 2
    total = max(blocks.total, 1)
    used, cached, free = bar([status.kv_use, blocks.cached / total, 1.0], width)
    signs = "#=." if console.options.ascii_only else "█▒░"
    text = Text(signs[0] * used, style="yellow")
    text.append(signs[1] * cached, style="blue")
    text.append(signs[2] * free, style="dim")
    return text


def _kv_words(status: Status) -> str:
    blocks = status.blocks
    return f"{percent(status.kv_use)} used, {blocks.cached:,} cached of {blocks.total:,}"


def _rates(board: Board) -> tuple[str, str, str]:
    """Generated tokens, prompt tokens and steps, per second."""
    recent = board.recent
    return (
        per_second(recent.rate(lambda each: each.generated_tokens), "tok/s"),
        per_second(recent.rate(lambda each: each.prompt_tokens), "tok/s"),
        per_second(recent.rate(lambda each: each.steps), "steps/s"),
    )
