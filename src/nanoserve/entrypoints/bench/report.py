"""Reports of benchmarks: tables on standard output, progress on standard error, every number in a JSON file."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
from rich.console import Console
from rich.table import Table

from nanoserve.entrypoints.compose.bootstrap import environment
from nanoserve.ports.errors import BadValueError

PIPE_WIDTH: Final = 118
"""Columns where standard output is no terminal."""
PIPE_SECONDS: Final = 10.0
"""Between two lines of progress where standard error is no terminal."""


def show(*tables: Table | str) -> None:
    """Print to standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for each in tables:
        console.print(each)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], **style: Any) -> Table:
    """The first column is aligned left, numbers right; text that does not fit is cut in the first column."""
    made = Table(**style)
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="right" if place else "left", no_wrap=not place, overflow="ellipsis")
    for row in rows:
        made.add_row(*row)
    return made


def number(value: float) -> str:
    """Four digits that matter, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@contextlib.contextmanager
def doing(what: str, reached: Callable[[], str] = str) -> Iterator[None]:
    """Show progress: in a terminal in one place, elsewhere as a line now and then."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    ended = threading.Event()
    with contextlib.ExitStack() as closing:
        say: Callable[[str], Any] = console.print
        if console.is_terminal:
            say = closing.enter_context(console.status(what)).update

        def follow() -> None:
            while not ended.wait(0.5 if console.is_terminal else PIPE_SECONDS):
                say(": ".join(filter(None, (what, reached()))))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        closing.callback(thread.join)
        closing.callback(ended.set)
        yield


def head(benchmark: str) -> dict[str, Any]:
    """The head of every file: the command as it was typed, without a server's key, and the machine."""
    typed = ["", *(re.sub(r"^(--api-key=).*", r"\1***", each) for each in sys.argv[1:])]
    hidden = ["***" if before == "--api-key" else each for before, each in pairwise(typed)]
    command = shlex.join(["nanoserve", *hidden])
    return {"benchmark": benchmark, "command": command, "machine": environment()}


def check_writable(path: str | None) -> None:
    """Raise `OSError` before anything is measured where the file cannot be written; leaves no file that was not there."""
    if path is not None:
        was_there = pathlib.Path(path).exists()
        pathlib.Path(path).open("a", encoding="utf-8").close()
        if not was_there:
            pathlib.Path(path).unlink()


def check_plot(path: str | None) -> None:
    """Raise before anything is measured where no picture can be drawn or written."""
    if path is None:
        return
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise BadValueError("plot", "needs matplotlib: pip install matplotlib, or no --plot") from None
    check_writable(path)


def write_report(path: str | None, report: Mapping[str, Any]) -> None:
    """Write the file, if one is wanted."""
    if path is not None:
        text = json.dumps(report, indent=1, default=attrs.asdict)
        try:
            pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:  # of a full disk, which does not say where
            raise OSError(error.errno, error.strerror, path) from None


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value that at least this fraction of the values does not exceed; NaN of none."""
    if not values:
        return float("nan")
    return sorted(values)[max(math.ceil(fraction * len(values)), 1) - 1]
