"""The pages of `--help`: what a command does, the examples and common options of help.toml; `--help-all` shows every option."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, Final

import rich_click as click

OWN_PAGES: Final = Path(__file__).with_name("help.toml")
_SHOWS_ALL: Final = "nanoserve.help_all"


@functools.cache
def help_pages(path: Path = OWN_PAGES) -> dict[str, Any]:
    """By the command as it is typed: `examples`, pairs of a command and what it does, and `common`, the flags listed first."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


class Command(click.RichCommand):
    """A command with examples, which stand in `pages`."""

    def __init__(self, *args: Any, pages: Path = OWN_PAGES, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.pages = pages
        names, text = ["--help-all"], "Show every option and exit."
        show: dict[str, Any] = {
            "is_flag": True,
            "is_eager": True,
            "expose_value": False,
            "callback": _show_all,
        }
        self.params.append(click.Option(names, help=text, **show))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What it does, and its examples."""
        super().format_help_text(ctx, formatter)
        from rich.padding import Padding  # noqa: PLC0415 - completion does without
        from rich.text import Text  # noqa: PLC0415 - as above

        formatter.write(Padding(Text("Examples:"), (0, 1)))
        for command, meaning in help_pages(self.pages)[ctx.command_path]["examples"]:
            formatter.write(Padding(Text(command, style="bold"), (0, 1, 0, 3)))
            formatter.write(Padding(Text(meaning, style="dim"), (0, 1, 0, 7)))
        formatter.write(Text())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """In one panel those that are common, or in several all of them."""
        common = help_pages(self.pages)[ctx.command_path].get("common", "").split()
        if not common or ctx.meta.get(_SHOWS_ALL):
            super().format_options(ctx, formatter)
            return
        listed = [*common, "--help", "--help-all"]
        panel = {"name": "Options that most people use", "options": listed}
        formatter.config.option_groups = {ctx.command_path: [panel]}
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        left_out = [each for each in options if not {*listed} & {*each.opts}]
        try:
            for each in left_out:
                each.hidden = True
            super().format_options(ctx, formatter)
        finally:
            for each in left_out:
                each.hidden = False


class CommandGroup(Command, click.RichGroup):
    """A command with commands of its own."""


def _show_all(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
