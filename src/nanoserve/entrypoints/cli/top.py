"""`nanoserve top`: a running server's numbers in the terminal."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.compose.config.shared_settings import CLIENT_SETTINGS, LOG_SETTINGS
from nanoserve.ports.errors import BadValueError

DEFAULT_URL: Final = "http://127.0.0.1:8000"
SETTINGS: Final = (*CLIENT_SETTINGS, *LOG_SETTINGS)

click.rich_click.OPTION_GROUPS["nanoserve top"] = [
    panel("Server", CLIENT_SETTINGS, "--api-key", "--once"),
    panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
]


@click.command()
@click.argument("named", required=False, metavar="[URL]")
@click.option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)
@click.option("--once", is_flag=True, help="Show the numbers of about a second, and exit.")
@settings_options(*SETTINGS)
@click.pass_obj
def top(reporting: Reporting, /, *, named: str | None, api_key: str | None, once: bool, **flags: Any) -> None:
    """Show what the server at URL does, live; if none is named, the one at http://127.0.0.1:8000.

    q or Ctrl-C leaves. Into a pipe or a file goes one plain line per second.
    """
    configuration = read_settings(flags, reporting)
    if named is not None and flags["url"] not in {None, named}:
        raise BadValueError("url", f"is given twice, as {named!r} and as {flags['url']!r}")
    configuration = configuration.with_argument("url", named)
    if flags["print_config"]:
        print_configuration(configuration, SETTINGS)
        return
    from nanoserve.entrypoints.client.top.command import run_top  # noqa: PLC0415 - not needed for --help

    run_top(configuration.client.url or DEFAULT_URL, key=api_key, once=once)
