"""What the benchmarks print: tables on standard output, progress on standard error where that is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.bench.measurement import RunSpread
from nanoserve.entrypoints.bench.profiling import StepProfile
from nanoserve.entrypoints.compose.stopwatch import Phase

PIPE_WIDTH: Final = 118
"""Columns where standard output is no terminal."""
MOST_KERNELS: Final = 25
BATCH_COLUMNS: Final = (
    "ttft_p50_ms",
    "itl_p50_ms",
    "itl_p90_ms",
    "itl_p99_ms",
    "e2e_p50_ms",
    "output_tok_s",
    "floor_fraction",
)
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
    "itl_p50_ms": "ITL ms, p50",
    "itl_p90_ms": "p90",
    "itl_p99_ms": "p99",
    "e2e_p50_ms": "E2E ms",
    "floor_seconds": "floor, seconds",
    "floor_fraction": "fraction of the floor",
}


def show(*tables: Table | str) -> None:
    """Print to standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    for each in tables:
        console.print(each, highlight=False, markup=False)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what takes so long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def figures_table(
    figures: Mapping[str, RunSpread], peer: Mapping[str, RunSpread], peer_name: str | None
) -> Table:
    """One row per figure: median, least and most of the runs; the peer's median, and how much faster ours is."""
    columns = ["", "median", "least", "most"]
    table = Table(*columns, *([peer_name, "ratio"] if peer_name else []))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, ours in figures.items():
        cells = [LABELS[name], number(ours.median), number(ours.least), number(ours.most)]
        if peer_name:
            theirs = peer.get(name)
            ratio = f"{ours.median / theirs.median:.2f}" if theirs and name.endswith("tok_s") else ""
            cells += [number(theirs.median) if theirs else "", ratio]
        table.add_row(*cells)
    return table


def batches_table(
    rows: Mapping[int, Mapping[str, RunSpread]],
    peer: Mapping[int, Mapping[str, RunSpread]],
    peer_name: str | None,
) -> Table:
    """One row per batch size; latencies in milliseconds, medians of the runs."""
    names = [name for name in BATCH_COLUMNS if any(name in figures for figures in rows.values())]
    table = Table("batch", *(LABELS[name] for name in names))
    if peer_name:
        table.add_column(f"{peer_name} E2E ms")
        table.add_column(f"{peer_name} tok/s")
        table.add_column("ratio")
    for column in table.columns:
        column.justify = "right"
    for batch, figures in rows.items():
        cells = [number(figures[name].median) if name in figures else "" for name in names]
        if peer_name:
            theirs = {name: spread.median for name, spread in peer[batch].items()}
            ratio = figures["output_tok_s"].median / theirs["output_tok_s"]
            cells += [number(theirs["e2e_p50_ms"]), number(theirs["output_tok_s"]), f"{ratio:.2f}"]
        table.add_row(str(batch), *cells)
    return table


def phases_table(phases: Sequence[Phase]) -> Table:
    """One row per phase and the sum."""
    total = sum(each.seconds for each in phases)
    return _two_columns("phase", "seconds", {**{each.name: each.seconds for each in phases}, "total": total})


def memory_table(shares: Mapping[str, int]) -> Table:
    """One row per purpose of the device's memory."""
    return _two_columns("device memory", "GiB", {name: size / 2**30 for name, size in shares.items()})


def _two_columns(name: str, unit: str, values: Mapping[str, float]) -> Table:
    table = Table(name, unit)
    table.columns[1].justify = "right"
    for each, value in values.items():
        table.add_row(each, f"{value:.2f}")
    return table


def profile_table(profile: StepProfile) -> Table:
    """The longest kernels: calls and microseconds of a step, and the share of all kernels' time."""
    total = sum(each.seconds for each in profile.kernels) or 1.0
    table = Table("kernel", "calls/step", "us/call", "us/step", "share")
    for column in table.columns[1:]:
        column.justify = "right"
    table.columns[0].overflow = "ellipsis"
    table.columns[0].no_wrap = True
    for each in profile.kernels[:MOST_KERNELS]:
        per_call, per_step = 1e6 * each.seconds / each.calls, 1e6 * each.seconds / profile.steps
        calls = f"{each.calls / profile.steps:.1f}"
        table.add_row(
            Text(each.name), calls, f"{per_call:.1f}", f"{per_step:.1f}", f"{each.seconds / total:.1%}"
        )
    rest = profile.kernels[MOST_KERNELS:]
    if rest:
        seconds = sum(each.seconds for each in rest)
        others = f"{1e6 * seconds / profile.steps:.1f}"
        table.add_row(f"{len(rest)} others", "", "", others, f"{seconds / total:.1%}")
    return table


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
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
