"""What `--help` shows: what a command does, examples, the options that most people use; `--help-all` shows every option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import rich_click as click

_SHOWS_ALL: Final = "nanoserve.help_all"


class _Helpful(click.RichCommand):
    """A command with examples.

    Attributes:
        examples: commands that can be typed as they are, each with a word on what it does.
        common: the flags that `--help` lists, in order; all of them if empty.
    """

    def __init__(
        self, *args: Any, examples: Sequence[tuple[str, str]] = (), common: Sequence[str] = (), **extra: Any
    ) -> None:
        super().__init__(*args, **extra)
        self.examples, self.common = examples, common
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option and exit.",
            )
        )

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        from rich.padding import Padding  # noqa: PLC0415 - completion does without
        from rich.text import Text  # noqa: PLC0415 - as above

        formatter.write(Padding(Text("Examples:"), (0, 1)))
        for command, meaning in self.examples:
            formatter.write(Padding(Text(command, style="bold"), (0, 1, 0, 3)))
            formatter.write(Padding(Text(meaning, style="dim"), (0, 1, 0, 7)))
        formatter.write(Text())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if not self.common or ctx.meta.get(_SHOWS_ALL):
            super().format_options(ctx, formatter)
            return
        listed = {"--help", "--help-all", *self.common}
        left_out = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        left_out = [each for each in left_out if not each.hidden and not listed & {*each.opts}]
        panel = {"name": "Options that most people use", "options": [*self.common, "--help", "--help-all"]}
        formatter.config.option_groups = {ctx.command_path: [panel]}
        try:
            for each in left_out:
                each.hidden = True
            super().format_options(ctx, formatter)
        finally:
            for each in left_out:
                each.hidden = False


class Command(_Helpful):
    """One command."""


class Group(_Helpful, click.RichGroup):
    """A command with commands of its own."""


def _show_all(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
