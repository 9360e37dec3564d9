"""`nanoserve top`: a running server's numbers in the terminal."""

from __future__ import annotations

import rich_click as click

from nanoserve.entrypoints.cli.options import api_key_option, configured
from nanoserve.entrypoints.compose.config.command_settings import CLIENT_SETTINGS
from nanoserve.entrypoints.compose.config.configuration import Configuration


@click.command()
@click.argument("named", required=False, metavar="[URL]")
@configured("nanoserve top", {"Server": (*CLIENT_SETTINGS, "--api-key", "--once")}, argument="url")
@api_key_option
@click.option("--once", is_flag=True, help="Show the numbers of about a second, and exit.")
def top(configuration: Configuration, *, api_key: str | None, once: bool) -> None:
    """Show what the server at URL does, live; if none is named, the one at http://127.0.0.1:8000.

    q or Ctrl-C leaves. Into a pipe or a file goes one plain line per second.
    """
    from nanoserve.entrypoints.client.top.command import run_top  # noqa: PLC0415 - not needed for --help

    run_top(configuration.client.url or "http://127.0.0.1:8000", key=api_key, once=once)
