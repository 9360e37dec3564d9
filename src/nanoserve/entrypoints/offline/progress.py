"""A progress bar over prompts, on standard error and only where that is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProgressBar:
    """Counts finished prompts and generated tokens."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._tokens = 0

    def advance(self, *, tokens: int, prompts: int) -> None:
        """So many more of each."""
        self._tokens += tokens
        elapsed = self._progress.tasks[0].elapsed or 0.0
        rate = f"{self._tokens / elapsed:.0f} tok/s" if elapsed else ""
        self._progress.update(self._task, advance=prompts, rate=rate)


@contextlib.contextmanager
def progress_bar(total: int, *, enabled: bool) -> Iterator[ProgressBar]:
    """Show a bar while the block runs."""
    console = Console(stderr=True)
    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, disable=not (enabled and console.is_terminal), transient=True
    ) as progress:
        yield ProgressBar(progress, progress.add_task("prompts", total=total, rate=""))
