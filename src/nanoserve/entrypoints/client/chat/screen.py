"""How a conversation looks: rendered in a terminal, nothing but the text in a pipe.

In a terminal the answer is Markdown. What is settled (whole blocks) is printed once and scrolls away; only the block that
still grows is drawn again, so that long answers neither flicker nor are cut off.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

REDRAW_SECONDS: Final = 0.06
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FENCE: Final = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


class Screen:
    """Where answers and notes are shown; this one is plain: answers on standard output, the rest on standard error."""

    def __init__(self) -> None:
        self._ends_line = True

    def write(self, text: str) -> None:
        """More of an answer."""
        sys.stdout.write(text)
        sys.stdout.flush()
        self._ends_line = text.endswith("\n")

    def end(self) -> None:
        """The answer is over; harmless where there was none."""
        if not self._ends_line:
            self.write("\n")

    def note(self, text: str) -> None:
        """A line that is no part of the conversation."""
        print(text, file=sys.stderr)  # noqa: T201 - the chat's own voice

    def list(self, rows: Sequence[tuple[str, str]]) -> None:
        """Names and values."""
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.note(f"{name:<{width}}  {value}")


class TerminalScreen(Screen):
    """Markdown, colours; what a model says cannot steer the terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live: Live | None = None
        self._growing = ""
        self._drawn = 0.0

    def write(self, text: str) -> None:
        """Print what is settled, draw the rest again."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        settled, self._growing = split_settled(self._growing + without_controls(text))
        if settled:
            self._print(settled)
        if settled or time.monotonic() - self._drawn > REDRAW_SECONDS:
            self._live.update(_markdown(self._growing), refresh=True)
            self._drawn = time.monotonic()

    def end(self) -> None:
        """Print what has grown last."""
        if self._live is None:
            return
        self._live.update("")
        self._live.stop()
        self._live = None
        if self._growing.strip():
            self._print(self._growing)
        self._growing = ""

    def note(self, text: str) -> None:
        """Dimmed."""
        self._console.print(Text(without_controls(text), style="dim"))

    def list(self, rows: Sequence[tuple[str, str]]) -> None:
        """In columns."""
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        self._console.print(table)

    def _print(self, text: str) -> None:
        self._console.print(_markdown(text))
        self._console.print()


def choose_screen(*, interactive: bool) -> Screen:
    """Rendered where a person looks at a terminal that can be drawn on."""
    console = Console(highlight=False)
    if interactive and console.is_terminal and not console.is_dumb_terminal:
        return TerminalScreen(console)
    return Screen()


def split_settled(text: str) -> tuple[str, str]:
    """The blocks of a Markdown text that more text cannot change, and the rest: cut at the last empty line outside fences."""
    end = len(text)
    while (end := text.rfind("\n\n", 0, end)) >= 0:
        if len(_FENCE.findall(text[:end])) % 2 == 0:
            return text[:end].strip("\n"), text[end + 2 :]
    return "", text


def without_controls(text: str) -> str:
    """Line breaks and tabs stay; what would move the cursor, colour or reorder the text becomes U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


def _markdown(text: str) -> Markdown:
    return Markdown(text, hyperlinks=False)
