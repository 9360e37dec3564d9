"""`nanoserve env`: what a bug report needs to know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import rich_click as click

from nanoserve.entrypoints.cli.help import Command


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
