"""`nanoserve env`: what a bug report needs to know; `nanoserve models`: which families of models are run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.help import Command

_PIPE_WIDTH: Final = 160
"""Columns where standard output is no terminal."""


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def env(*, as_json: bool) -> None:
    """Show versions, processor and memory, for bug reports."""
    from nanoserve.entrypoints.compose.bootstrap import environment  # noqa: PLC0415 - not needed for --help

    facts = environment()
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in _flat(facts):
        click.echo(f"{name:<24} {value}")


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as dotted names."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _shown(prefix, value)


def _shown(prefix: str, value: Any) -> str:
    if prefix == "memory.":
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not installed" if value is None else str(value)


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
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False).print(table)
