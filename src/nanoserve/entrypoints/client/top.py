"""`nanoserve top`: a running server's `/metrics` as a table in a terminal, or one plain line per second elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import rich_click as click
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.client import server
from nanoserve.entrypoints.compose.printable import printable

SECONDS: Final = 1.0
"""Between two readings; rates are of the time between them."""
QUIET_SECONDS: Final = 15.0
_PREFIX: Final = "nanoserve:"
_COMMON: Final = {"model_name", "engine"}


@attrs.frozen
class Scrape:
    """A server's metrics at a moment of our clock: `values` by name, summed over labels, and those with one label `by_label`."""

    moment: float
    model: str
    num_blocks: str
    values: dict[str, float]
    by_label: dict[str, dict[str, float]]

    def quantile(self, name: str, fraction: float) -> str:
        """The bound of a histogram's bucket, in milliseconds, that this fraction of its values does not exceed."""
        buckets = sorted((float(bound), count) for bound, count in self.by_label.get(name, {}).items())
        total, longest = buckets[-1][1] if buckets else 0, 0.0
        for bound, count in buckets:
            if total and count >= fraction * total:
                return f"> {1000 * longest:,.0f} ms" if math.isinf(bound) else f"<= {1000 * bound:,.0f} ms"
            longest = bound
        return "-"


def read_metrics(page: bytes, moment: float) -> Scrape:
    """The metrics as Prometheus reads them; raises `ProtocolError` if it could not, or where the server is another one."""
    values, by_label, model, blocks = dict[str, float](), dict[str, dict[str, float]](), "", "?"
    try:
        families = text_string_to_metric_families(page.decode())
        for sample in (each for family in families for each in family.samples):
            if not sample.name.startswith(_PREFIX):
                continue
            name = sample.name.removeprefix(_PREFIX)
            labels = {key: each for key, each in sample.labels.items() if key not in _COMMON}
            model = sample.labels.get("model_name", model)
            blocks = labels.get("num_gpu_blocks", blocks)
            values[name] = values.get(name, 0.0) + sample.value
            if len(labels) == 1:
                by_label.setdefault(name, {}).update(dict.fromkeys(labels.values(), sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise server.ProtocolError(f"the server's /metrics cannot be read: {error}") from None
    if "engine_up" not in values:
        raise server.ProtocolError("the server's /metrics are not nanoserve's")
    return Scrape(moment, model, blocks, values, by_label)


def run_top(url: str, *, key: str | None, once: bool) -> None:
    """Show the server until the user leaves; raises a `NanoserveError` where it is not there at first, or refuses."""
    address, console = server.read_address(url, key), Console(highlight=False)
    with server.open_server(address, quiet_seconds=QUIET_SECONDS) as remote:
        before = _read(remote)
        if once:
            time.sleep(SECONDS)
            console.print(view(address.url, before, _read(remote), ""))
            return
        with contextlib.suppress(KeyboardInterrupt), _screen(console) as (show, leaves):
            now, lost = before, ""
            while True:
                show(address.url, before, now, lost)
                if leaves():
                    return
                try:
                    before, now, lost = now, _read(remote), ""
                except server.UnreachableError as error:  # what it said last stays
                    lost = str(error)


def _read(remote: server.OpenAIServer) -> Scrape:
    """Raises `UnreachableError` also for a server that is only busy."""
    try:
        return read_metrics(remote.get("/metrics"), time.monotonic())
    except server.ServerRefusedError as error:
        if error.status == 404:
            message = f"there is no /metrics at {remote.address.url}: is it a nanoserve server?"
            raise server.ServerRefusedError(message, error.status) from None
        if error.status is not None and error.status >= 500:
            raise server.UnreachableError(str(error)) from None
        raise


def rows(before: Scrape, now: Scrape) -> Iterator[tuple[str, str]]:
    """Names and their values."""

    def value(name: str) -> float:
        return now.values.get(name, 0.0)

    def rate(name: str) -> str:
        seconds = now.moment - before.moment
        return f"{max(value(name) - before.values.get(name, 0.0), 0) / seconds:,.1f}" if seconds > 0 else "-"

    def latency(name: str) -> str:
        return " ".join(f"p{part} {now.quantile(f'{name}_bucket', part / 100)}" for part in (50, 99))

    looked_up = value("prefix_cache_queries_total")
    hits = f"{value('prefix_cache_hits_total') / looked_up:.0%}" if looked_up else "-"
    ended = sorted(now.by_label.get("requests_finished_total", {}).items(), key=lambda each: -each[1])
    yield "running", f"{value('num_requests_running'):,.0f}"
    yield "waiting", f"{value('num_requests_waiting'):,.0f}"
    yield "generated", f"{rate('generation_tokens_total')} tok/s"
    yield "prompt", f"{rate('prompt_tokens_total')} tok/s"
    yield "steps", f"{rate('engine_steps_total')} steps/s"
    cached = f"{value('kv_blocks_cached'):,.0f} cached of {now.num_blocks}"
    yield "KV blocks", f"{value('kv_cache_usage_perc'):.0%} used, {cached}"
    yield "prefix hits", f"{hits} of {looked_up:,.0f} tokens"
    yield "preemptions", f"{value('num_preemptions_total'):,.0f}"
    if value("expert_tokens_total"):
        yield "experts", f"balance {value('expert_balance'):.2f} over ranks"
    yield "TTFT", latency("time_to_first_token_seconds")
    yield "ITL", latency("inter_token_latency_seconds")
    yield "finished", ", ".join(f"{name} {count:,.0f}" for name, count in ended if count) or "none yet"
    yield "restarts", f"{value('engine_restarts_total'):,.0f}"
    yield "viewers", f"{value('viewers'):,.0f}"


def _state(now: Scrape, lost: str) -> str:
    if lost:
        return f"lost: {lost}"
    return "ready" if now.values["engine_up"] else "not ready"


def line(before: Scrape, now: Scrape, lost: str) -> str:
    """Everything in one line, the wall clock in front."""
    figures = () if lost else (f"{name} {text}" for name, text in rows(before, now))
    return printable(" | ".join([f"{time.strftime('%H:%M:%S')} {_state(now, lost)}", *figures]))


def view(url: str, before: Scrape, now: Scrape, lost: str) -> Group:
    """The table; dimmed where the server is lost."""
    style = "bold green" if not lost and now.values["engine_up"] else "bold red"
    title = Text.assemble(
        ("nanoserve top ", "bold"), printable(f"{url}  {now.model}  "), (printable(_state(now, lost)), style)
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in rows(before, now):
        table.add_row(Text(name, style="dim"), Text(printable(text), style="dim" if lost else ""))
    return Group(title, Text(), table)


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[tuple[Callable[..., object], Callable[[], bool]]]:
    """Two functions: one shows a reading, one waits a second and says whether the user leaves; SIGTERM does as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda _url, *reading: click.echo(line(*reading)), _stays
        return
    with _keys() as leaves, Live(console=console, screen=True, auto_refresh=False) as live:
        hint = Text("\nq leaves", style="dim")
        yield lambda *shown: live.update(Group(view(*shown), hint), refresh=True), leaves


def _stays() -> bool:
    """Waits a second, without a keyboard."""
    time.sleep(SECONDS)
    return False


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """True if q is pressed within a second, or the terminal is gone."""
    if not sys.stdin.isatty():
        yield _stays
        return
    keyboard = sys.stdin.fileno()

    def leaves() -> bool:
        limit = time.monotonic() + SECONDS
        while (left := limit - time.monotonic()) > 0 and select.select([keyboard], [], [], left)[0]:
            try:
                pressed = os.read(keyboard, 64)
            except OSError:
                return True
            if not pressed or b"q" in pressed.lower():
                return True
        return False

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield leaves
    finally:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
