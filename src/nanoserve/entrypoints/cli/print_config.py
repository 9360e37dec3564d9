"""`--print-config`: every setting with its value and its origin, aligned."""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click

from nanoserve.entrypoints.cli.options import show_value
from nanoserve.entrypoints.config.configuration import Configuration
from nanoserve.entrypoints.config.setting import Setting


def print_configuration(configuration: Configuration, settings: Sequence[Setting]) -> None:
    """Write the table to standard output."""
    rows = [("name", "value", "origin")]
    rows += [
        (each.name, show_value(each.kind, sourced.value), sourced.origin)
        for each in settings
        for sourced in (configuration.values[each.name],)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        click.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
