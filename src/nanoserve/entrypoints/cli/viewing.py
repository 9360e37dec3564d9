"""`nanoserve inspect` shows a recorded run; `nanoserve top` shows a running server's numbers in the terminal."""

from __future__ import annotations

from typing import Any

import rich_click as click

from nanoserve.entrypoints.cli.help import Command
from nanoserve.entrypoints.cli.options import api_key_option, configured
from nanoserve.entrypoints.compose.config.command_settings import ClientSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, settings_of

click.rich_click.OPTION_GROUPS["nanoserve inspect"] = [
    {"name": "Instead of the browser", "options": ["--report", "--png", "--summary"]},
    {"name": "The page", "options": ["--no-browser", "--port"]},
    {"name": "Others", "options": ["--debug", "--help", "--help-all"]},
]


@click.command(cls=Command)
@click.argument("file", metavar="STEP_LOG", type=click.Path())
@click.option(
    "--report", metavar="OUT.html", help="Write the page with the trace into one file that needs no server."
)
@click.option(
    "--png", metavar="OUT.png", help="Draw the run: sequences, steps and blocks over time (needs Chromium)."
)
@click.option("--summary", is_flag=True, help="Print its figures only.")
@click.option(
    "--no-browser",
    "browser",
    flag_value=False,
    default=True,
    help="Print the page's address and open nothing.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port of the page on 127.0.0.1; a free one if not given.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def inspect(*, file: str, **options: Any) -> None:
    """Show the run in STEP_LOG, which `generate --trace FILE` or `serve --trace FILE` has written, step by step."""
    from nanoserve.entrypoints.page.inspect.command import run_inspect  # noqa: PLC0415 - not needed for --help

    run_inspect(file, **options)


@click.command(cls=Command)
@configured(
    "nanoserve top", {"Server": (*settings_of(ClientSettings), "--api-key", "--once")}, argument="url"
)
@api_key_option
@click.option("--once", is_flag=True, help="Show the numbers of about a second, and exit.")
def top(configuration: Configuration, *, api_key: str | None, once: bool) -> None:
    """Show what the server at URL does, live; if none is named, the one at http://127.0.0.1:8000.

    q or Ctrl-C leaves. Into a pipe or a file goes one plain line per second.
    """
    from nanoserve.entrypoints.client.top import run_top  # noqa: PLC0415 - not needed for --help

    run_top(configuration.client.url or "http://127.0.0.1:8000", key=api_key, once=once)
