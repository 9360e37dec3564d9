"""`nanoserve models`: which families of models are run."""

from __future__ import annotations

import json
import sys

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.help import Command

PIPE_WIDTH = 160
"""Columns where standard output is no terminal."""


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def models(*, as_json: bool) -> None:
    """List the families of models, and what is supported of each."""
    from rich.console import Console  # noqa: PLC0415 - nor are these needed for --help
    from rich.table import Table  # noqa: PLC0415

    from nanoserve.entrypoints.compose.families import families  # noqa: PLC0415

    found = families()
    if as_json:
        click.echo(json.dumps([attrs.asdict(each) for each in found]))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("model_type", "feeds", "cache", "prefix reuse", "devices", "quantized", "shape:"):
        table.add_column(heading, overflow="fold")
    for each in found:
        shapes = ", ".join(each.shapes)
        table.add_row(
            each.model_type, each.feed, each.cache, each.reuse, each.devices, each.quantized, shapes
        )
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(table)
