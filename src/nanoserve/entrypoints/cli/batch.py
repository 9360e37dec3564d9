"""The command `nanoserve run-batch`; its code is imported when it runs."""

from __future__ import annotations

import rich_click as click

from nanoserve.entrypoints.cli.options import DEBUG, Command


@click.command("run-batch", cls=Command)
@click.argument("file", metavar="REQUESTS.jsonl", type=click.Path())
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Where answers are written, and a later run goes on; REQUESTS.answers.jsonl if not given.",
)
@click.option(
    "--url", metavar="URL", default="http://127.0.0.1:8000", help="The server, with or without /v1."
)
@click.option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), default=32, help="Requests at once; 32 if not given."
)
@click.option(
    "--priority",
    metavar="NUMBER",
    type=int,
    help="Priority of requests that name none, for a server with --policy priority; higher runs later.",
)
@DEBUG
def run_batch(
    *, file: str, output: str | None, url: str, api_key: str | None, concurrency: int, priority: int | None
) -> None:
    """Send each line of REQUESTS.jsonl, in OpenAI's form of batches, to a server, and write its answer to --output.

    Requests that have an answer there are not sent again. Waits for a server that is away or full. Ctrl-C stops.
    """
    from nanoserve.entrypoints.client.batch import run_batch as run  # noqa: PLC0415 - not needed for --help
    from nanoserve.entrypoints.client.server import read_address  # noqa: PLC0415 - as above

    output = output or f"{file.removesuffix('.jsonl')}.answers.jsonl"
    tally = run(file, output, read_address(url, api_key), concurrency=concurrency, priority=priority)
    click.echo(f"{tally.completed} completed, {tally.failed} failed, {tally.before} before", err=True)
