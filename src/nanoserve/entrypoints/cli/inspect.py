"""`nanoserve inspect`: looks into a recorded run."""

from __future__ import annotations

import rich_click as click

click.rich_click.OPTION_GROUPS["nanoserve inspect"] = [
    {"name": "Instead of the browser", "options": ["--report", "--png", "--summary"]},
    {"name": "The page", "options": ["--no-browser", "--port"]},
    {"name": "Others", "options": ["--debug", "--help"]},
]


@click.command()
@click.argument("file")
@click.option(
    "--report", metavar="OUT.html", help="Write the page with the trace into one file that needs no server."
)
@click.option(
    "--png", metavar="OUT.png", help="Draw the run: sequences, steps and blocks over time (needs Chromium)."
)
@click.option("--summary", is_flag=True, help="Print its figures only.")
@click.option("--no-browser", is_flag=True, help="Print the page's address and open nothing.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port of the page on 127.0.0.1; a free one if not given.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def inspect(
    *, file: str, report: str | None, png: str | None, summary: bool, no_browser: bool, port: int
) -> None:
    """Show the run in FILE, which `generate --trace FILE` or `serve --trace FILE` has written, step by step."""
    from nanoserve.entrypoints.page.inspect.command import InspectOutputs, run_inspect  # noqa: PLC0415 - not needed for --help

    run_inspect(
        file, InspectOutputs(report=report, png=png, summary=summary, port=port, browser=not no_browser)
    )
