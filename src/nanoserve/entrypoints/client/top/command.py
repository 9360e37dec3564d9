"""`nanoserve top`, once its settings are read: follow the server and show it, until the user leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Final

import rich_click as click
from rich.console import Console
from rich.live import Live

from nanoserve.entrypoints.client.address import Address, read_address
from nanoserve.entrypoints.client.top.following import ServerLost, ServerStatus, follow
from nanoserve.entrypoints.client.top.view import TopBoard, line, view

REDRAW_SECONDS: Final = 0.5
LINE_SECONDS: Final = 1.0
ONCE_SECONDS: Final = 1.0
"""How far apart the statuses are, at least, from which one view computes its rates; waited for twice as long at most."""


def run_top(url: str, *, key: str | None, once: bool) -> None:
    """Show the server; raises `BadValueError`, or a `NanoserveError` where the server is not there or refuses."""
    address = read_address(url, key)
    console = Console(highlight=False)
    asyncio.run(_show_once(address, console) if once else _show_live(address, console))


async def _show_once(address: Address, console: Console) -> None:
    board = TopBoard(address.url)
    first: float | None = None
    async with contextlib.aclosing(follow(address)) as updates:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                async for update in updates:
                    now = time.monotonic()
                    board.take(update, now)
                    if first is None and isinstance(update, ServerStatus):
                        first = now
                        limit.reschedule(asyncio.get_running_loop().time() + 2 * ONCE_SECONDS)
                    if isinstance(update, ServerLost) or (first is not None and now - first >= ONCE_SECONDS):
                        break
    console.print(view(board, console))


async def _show_live(address: Address, console: Console) -> None:
    """Until q, Ctrl-C or SIGTERM, or until the server refuses; nothing is drawn before its first status."""
    board, loop, following = TopBoard(address.url), asyncio.get_running_loop(), asyncio.current_task()
    assert following is not None
    leave = following.cancel
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)
    drawing: asyncio.Task[None] | None = None
    try:
        async with contextlib.aclosing(follow(address)) as updates:
            async for update in updates:
                board.take(update, time.monotonic())
                if drawing is None and isinstance(update, ServerStatus):
                    drawing = asyncio.create_task(_draw(board, console, leave))
                    drawing.add_done_callback(lambda _: leave())
    except asyncio.CancelledError:
        pass
    finally:
        if drawing is not None:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing


async def _draw(board: TopBoard, console: Console, leave: Callable[[], object]) -> None:
    """Redraw the board until cancelled: on a screen of its own in a terminal, else as one line after the other."""
    if not console.is_terminal or console.is_dumb_terminal:
        while True:
            click.echo(line(board))
            await asyncio.sleep(LINE_SECONDS)
    with leaving_with_q(leave), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(board, console, keys=True), refresh=True)
            await asyncio.sleep(REDRAW_SECONDS)


@contextlib.contextmanager
def leaving_with_q(leave: Callable[[], object]) -> Iterator[None]:
    """Call `leave` when q is pressed or the terminal is gone; does nothing where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        try:
            pressed = os.read(keyboard, 64)
        except OSError:
            pressed = b""
        if not pressed or b"q" in pressed.lower():
            loop.remove_reader(keyboard)
            leave()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
