"""What the benchmarks print: tables on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from nanoserve.entrypoints.bench.measurement import RunSpread
from nanoserve.entrypoints.bench.profiling import StepProfile

PIPE_WIDTH: Final = 118
"""Columns where standard output is no terminal."""
PIPE_SECONDS: Final = 10.0
TERMINAL_SECONDS: Final = 0.5
"""Between two reports of progress."""
MOST_KERNELS: Final = 25
LABELS: Final[Mapping[str, str]] = {
    "output_tok_s": "output tok/s",
    "total_tok_s": "total tok/s",
    "prompt_tok_s": "prompt tok/s",
    "decode_tok_s": "decode tok/s",
    "seconds": "seconds",
    "steps": "steps",
    "mean_step_ms": "ms per step, mean",
    "decode_step_ms": "ms per decode step",
    "host_step_us": "host us per decode step",
    "ttft_p50_ms": "TTFT ms, median",
    "ttft_max_ms": "TTFT ms, last",
    "floor_seconds": "floor, seconds",
    "floor_fraction": "fraction of the floor",
}
BATCH_LABELS: Final[Mapping[str, str]] = {
    "ttft_p50_ms": "TTFT ms, median",
    "itl_p50_ms": "ITL ms, p50",
    "itl_p90_ms": "p90",
    "itl_p99_ms": "p99",
    "e2e_p50_ms": "E2E ms",
    "output_tok_s": "output tok/s",
    "floor_fraction": "fraction of the floor",
}


def show(*tables: Table | str) -> None:
    """Print to standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for each in tables:
        console.print(each)


@contextlib.contextmanager
def doing(what: str, reached: Callable[[], str] = str) -> Iterator[None]:
    """Say what takes so long, and how far it is: in a terminal in one place, elsewhere in a line now and then."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    ended = threading.Event()

    def follow(show: Callable[[str], None], seconds: float) -> None:
        while not ended.wait(seconds):
            show(": ".join(filter(None, (what, reached()))))

    with contextlib.ExitStack() as closing:
        following: tuple[Any, float] = (console.print, PIPE_SECONDS)
        if console.is_terminal:
            following = (closing.enter_context(console.status(what)).update, TERMINAL_SECONDS)
        thread = threading.Thread(target=follow, args=following, daemon=True)
        thread.start()
        closing.callback(thread.join)
        closing.callback(ended.set)
        yield


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], **style: Any) -> Table:
    """The first column is to the left, numbers are to the right; what does not fit is cut in the first column."""
    made = Table(**style)
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="right" if place else "left", no_wrap=not place, overflow="ellipsis")
    for row in rows:
        made.add_row(*row)
    return made


def figures_table(
    figures: Mapping[str, RunSpread], peer: Mapping[str, RunSpread], peer_name: str | None
) -> Table:
    """One row per figure: median, least and most of the runs; the peer's median, and how much faster ours is."""
    rows = []
    for name, ours in figures.items():
        cells = [LABELS[name], number(ours.median), number(ours.least), number(ours.most)]
        if theirs := peer.get(name):
            ratio = f"{ours.median / theirs.median:.2f}" if name.endswith("tok_s") else ""
            cells += [number(theirs.median), ratio]
        rows.append(cells)
    return table(["", "median", "least", "most", *([peer_name, "ratio"] if peer_name else [])], rows)


def batches_table(
    batches: Mapping[int, Mapping[str, RunSpread]],
    peer: Mapping[int, Mapping[str, RunSpread]],
    peer_name: str | None,
) -> Table:
    """One row per batch size; latencies in milliseconds, medians of the runs."""
    names = [name for name in BATCH_LABELS if any(name in figures for figures in batches.values())]
    rows = []
    for batch, figures in batches.items():
        cells = [str(batch), *(number(figures[name].median) if name in figures else "" for name in names)]
        if peer_name:
            duration, rate = (peer[batch][name].median for name in ("e2e_p50_ms", "output_tok_s"))
            cells += [number(duration), number(rate), f"{figures['output_tok_s'].median / rate:.2f}"]
        rows.append(cells)
    headings = ["batch", *(BATCH_LABELS[name] for name in names)]
    return table(
        headings + ([f"{peer_name} E2E ms", f"{peer_name} tok/s", "ratio"] if peer_name else []), rows
    )


def profile_table(profile: StepProfile) -> Table:
    """The longest kernels: calls and microseconds of a step, and the share of all kernels' time."""
    total = sum(each.seconds for each in profile.kernels) or 1.0

    def share(seconds: float) -> tuple[str, str]:
        return f"{1e6 * seconds / profile.steps:.1f}", f"{seconds / total:.1%}"

    rows = [
        (
            *(each.name, f"{each.calls / profile.steps:.1f}", f"{1e6 * each.seconds / each.calls:.1f}"),
            *share(each.seconds),
        )
        for each in profile.kernels[:MOST_KERNELS]
    ]
    if rest := profile.kernels[MOST_KERNELS:]:
        rows.append((f"{len(rest)} others", "", "", *share(sum(each.seconds for each in rest))))
    return table(["kernel", "calls/step", "us/call", "us/step", "share"], rows)


def profile_title(profile: StepProfile) -> str:
    """What was profiled, and how it compares with the least that memory allows."""
    kernel_ms = 1e3 * sum(each.seconds for each in profile.kernels) / profile.steps
    title = f"{profile.steps} steps of {profile.rows} rows: {kernel_ms:.3f} ms of kernels per step"
    if profile.bytes_per_step is not None:
        title += f", which must read {profile.bytes_per_step / 1e9:.3f} GB"
    if profile.floor_seconds is not None:
        floor_ms = 1e3 * profile.floor_seconds
        title += f" (floor {floor_ms:.3f} ms, fraction {floor_ms / kernel_ms:.1%})"
    return title


def number(value: float) -> str:
    """Four digits that matter, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
