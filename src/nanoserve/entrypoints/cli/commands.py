"""The arguments and options of commands (`bench` has a file of its own); a command's code is imported when it runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli import options
from nanoserve.entrypoints.cli.failures import FAILED
from nanoserve.entrypoints.compose.config import serve_settings
from nanoserve.entrypoints.compose.config.command_settings import (
    AnswerSettings,
    ClientSettings,
    GenerateSettings,
    TraceSettings,
    VerifySettings,
)
from nanoserve.entrypoints.compose.config.configuration import (
    SAMPLING_SETTINGS,
    Configuration,
    sampling_settings,
    settings_of,
)
from nanoserve.entrypoints.compose.config.kinds import or_none, text
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.sampling import Door

_PIPE_WIDTH: Final = 160
"""Columns where standard output is no terminal."""
_CHAT_SAMPLING: Final = sampling_settings(Door.CHAT)
_CHAT_MODEL: Final = attrs.evolve(
    options.MODEL,
    kind=or_none(text("ID_OR_FOLDER"), "built-in"),
    summary="A model folder, a GGUF file or the name of a model on the Hugging Face hub; with --url, the served model's name.",
)
(_SYSTEM,) = options.named(settings_of(GenerateSettings), "system")


def _with_local_defaults(configuration: Configuration) -> Configuration:
    """The configuration with the model's own sampling defaults, if its files are on this machine already."""
    from nanoserve.entrypoints.compose.bootstrap import local_defaults  # noqa: PLC0415 - not needed for --help

    defaults = local_defaults(configuration.engine.model)
    if defaults is not None:
        configuration = configuration.with_model_defaults(defaults.values, defaults.origin)
    _ = configuration.sampling  # a value out of range is an error here too
    return configuration


@options.command(
    "nanoserve generate",
    {
        "Model": (options.MODEL, *options.LOADING),
        "Prompt and output": (
            options.option(
                "--file",
                type=click.Path(allow_dash=True),
                help="Prompts: one per line, or JSON objects (.jsonl) with `prompt` or `messages`.",
            ),
            options.option(
                "--json-schema",
                type=click.File("rb"),
                help="Every answer is JSON that fits the schema in this file.",
            ),
            options.option(
                "--regex", metavar="PATTERN", help="Every answer matches this regular expression as a whole."
            ),
            options.option(
                "--choice",
                metavar="TEXT",
                multiple=True,
                help="Every answer is one of these texts; may be repeated.",
            ),
            *settings_of(GenerateSettings),
            *settings_of(TraceSettings),
        ),
        "Sampling": SAMPLING_SETTINGS,
        "Engine": options.ENGINE,
    },
    argument="prompt",
    shown=_with_local_defaults,
    unset="the model's, else {}",
)
def generate(
    configuration: Configuration,
    *,
    prompt: str | None,
    file: str | None,
    json_schema: BinaryIO | None,
    regex: str | None,
    choice: tuple[str, ...],
) -> None:
    """Generate text from PROMPT, from standard input (no PROMPT, or -), or from every line of --file.

    Answers go to standard output, everything else to standard error.
    """
    from nanoserve.entrypoints.app.structured_outputs import constraint_of  # noqa: PLC0415 - as above
    from nanoserve.entrypoints.cli.prompt_sources import Source, decode, read_sources  # noqa: PLC0415 - as above

    place = json_schema.name if json_schema else ""
    schema = json_schema and decode(json_schema.read(), place, "json_schema")
    asked = {"json": schema, "regex": regex, "choice": choice or None}
    common = Source(place=place, constraint=constraint_of(structured_outputs=asked))
    sources = read_sources(prompt, file)
    from nanoserve.entrypoints.cli.generation import run_generation  # noqa: PLC0415 - loads torch

    run_generation(configuration, sources, common)


@options.command(
    "nanoserve embed",
    {
        "Model": (options.MODEL, *options.LOADING),
        "Texts and output": (
            options.option(
                "--file",
                type=click.Path(allow_dash=True),
                help="Texts: one per line, or JSON objects (.jsonl) with `prompt`.",
            ),
            options.option(
                "--prompt-name",
                metavar="NAME",
                help="What the texts are, such as query: the model may have something to put before those.",
            ),
            options.option(
                "--dimensions",
                metavar="NUMBER",
                type=int,
                help="The first so many numbers of each vector alone, for models whose vectors can be cut.",
            ),
        ),
        "Engine": options.ENGINE,
    },
    argument="prompt",
)
def embed(
    configuration: Configuration,
    *,
    prompt: str | None,
    file: str | None,
    prompt_name: str | None,
    dimensions: int | None,
) -> None:
    """Make a vector of PROMPT, of standard input (no PROMPT, or -), or of every line of --file.

    Each is a line of JSON on standard output; everything else goes to standard error.
    """
    from nanoserve.entrypoints.cli.prompt_sources import read_sources  # noqa: PLC0415 - as above

    sources = read_sources(prompt, file)
    from nanoserve.entrypoints.cli.generation import run_embedding  # noqa: PLC0415 - loads torch

    run_embedding(configuration, sources, prompt_name, dimensions)


@options.command(
    "nanoserve chat",
    {
        "Who answers": (
            _CHAT_MODEL,
            *settings_of(ClientSettings),
            options.API_KEY,
            attrs.evolve(_SYSTEM, summary="The system message that opens the conversation."),
        ),
        "Model": (*options.LOADING, *settings_of(AnswerSettings)),
        "Sampling": _CHAT_SAMPLING,
        "Engine": options.ENGINE,
    },
    defaults={"max_tokens": None},
    argument="model",
    unset="the model's, else {}",
)
def chat(configuration: Configuration, *, api_key: str | None) -> None:
    """Talk to MODEL in this process, or to a server (--url).

    /help lists the commands, Ctrl-C stops an answer. From a pipe, every line is a message and only answers are printed.
    """
    from nanoserve.entrypoints.client.chat import run_chat  # noqa: PLC0415 - not needed for --help

    run_chat(configuration, key=api_key, sampling=_CHAT_SAMPLING)


@options.command(
    "nanoserve serve",
    {
        "Model": (options.MODEL, *options.LOADING, *settings_of(AnswerSettings)),
        "Listening": settings_of(serve_settings.ListenSettings),
        "Access": settings_of(serve_settings.AccessSettings),
        "Bounds": settings_of(serve_settings.BoundSettings),
        "Work that can wait": settings_of(serve_settings.BatchSettings),
        "Watching the engine": (*settings_of(TraceSettings), *settings_of(serve_settings.WatchSettings)),
        "Engine": options.ENGINE,
    },
    argument="model",
    sample=True,
)
def serve(configuration: Configuration) -> None:
    """Serve MODEL, a folder, a GGUF file or a name on the Hugging Face hub; if none is named, the built-in one.

    SIGTERM or Ctrl-C lets living requests finish, a second one ends them.
    """
    from nanoserve.entrypoints.compose.process import prepared_engine  # noqa: PLC0415 - not needed for --help

    with prepared_engine(configuration.engine, in_process=configuration.serve.listen.in_process) as engine:
        from nanoserve.entrypoints.compose.log import configure_log  # noqa: PLC0415 - meanwhile
        from nanoserve.entrypoints.server.serve import serve as run  # noqa: PLC0415 - as above
        from nanoserve.entrypoints.server.serving import Serving  # noqa: PLC0415 - as above
        from nanoserve.entrypoints.server.sockets import with_code  # noqa: PLC0415 - as above

        settings = Serving.of(configuration)
        if configuration.values["log_json"].origin == "default":
            log = attrs.evolve(settings.log, log_json=not sys.stderr.isatty())
            settings = attrs.evolve(settings, log=log)
        configure_log(settings.log)
        try:
            run(settings, lambda started: _announce(started, as_record=settings.log.log_json), engine=engine)
        except NanoserveError as error:
            raise with_code(error) from error


def _announce(started: Any, *, as_record: bool) -> None:
    """Say that the server has started: to people on standard output, to programs as one more record."""
    import structlog  # noqa: PLC0415 - slow to import

    with contextlib.suppress(OSError):  # a server is there for its clients, whoever reads this
        click.echo("\n".join(started.lines()))
    if as_record:
        structlog.get_logger().info("ready", **started.record())
    for warning in started.warnings:
        structlog.get_logger().warning(warning)


@options.command(
    "nanoserve verify",
    {
        "Model": (options.MODEL, *options.LOADING),
        "Comparison": settings_of(VerifySettings),
        "Engine": options.ENGINE,
    },
    argument="model",
)
def verify(configuration: Configuration) -> None:
    """Compare every layer of MODEL, the logits, greedy tokens and log-probabilities with transformers.

    Both sides compute in float32 unless --dtype says otherwise. Exits with 1 where anything differs.
    """
    from nanoserve.entrypoints.offline.verification import verify_model  # noqa: PLC0415 - loads torch

    verdict = verify_model(configuration.engine, configuration.verify)
    tolerance = configuration.verify.tolerance
    for line in verdict.lines(tolerance):
        click.echo(line)
    if not verdict.passed(tolerance):
        sys.exit(FAILED)


@options.command(
    "nanoserve tune",
    {
        "Model": (options.MODEL, *options.LOADING),
        "Measuring": (
            options.option(
                "--rows", metavar="N,...", default="1,8,16,32,64,128,256", help="Tokens at once, 256 at most."
            ),
            options.option("--out", help="Write the table here, not where engines look for it."),
        ),
    },
    argument="model",
)
def tune(configuration: Configuration, *, rows: str, out: str | None) -> None:
    """Measure which tiles the products of MODEL are fastest with on this GPU, for engines that start here from now on.

    A model, or a shape with random weights, takes a minute or two. Engines with --deterministic keep the tiles that they have.
    """
    from nanoserve.entrypoints.bench.tuning import run_tuning  # noqa: PLC0415 - loads torch

    run_tuning(configuration, rows=rows, out=out)


@options.command(
    "nanoserve top",
    {
        "Server": (
            *settings_of(ClientSettings),
            options.API_KEY,
            options.switch("--once", help="Show the numbers of about a second, and exit."),
        )
    },
    argument="url",
)
def top(configuration: Configuration, *, api_key: str | None, once: bool) -> None:
    """Show what the server at URL does, live; if none is named, the one at http://127.0.0.1:8000.

    q or Ctrl-C leaves. Into a pipe or a file goes one plain line per second.
    """
    from nanoserve.entrypoints.client.top import run_top  # noqa: PLC0415 - not needed for --help

    run_top(configuration.client.url or "http://127.0.0.1:8000", key=api_key, once=once)


click.rich_click.OPTION_GROUPS["nanoserve inspect"] = [
    {"name": "Instead of the browser", "options": ["--report", "--png", "--summary"]},
    {"name": "The page", "options": ["--no-browser", "--port"]},
    {"name": "Others", "options": ["--debug", "--help", "--help-all"]},
]


@click.command(cls=options.Command)
@click.argument("file", metavar="STEP_LOG", type=click.Path())
@click.option(
    "--report", metavar="OUT.html", help="Write the page with the trace into one file that needs no server."
)
@click.option(
    "--png", metavar="OUT.png", help="Draw the run: sequences, steps and blocks over time (needs Chromium)."
)
@click.option("--summary", is_flag=True, help="Print its figures only.")
@click.option(
    "--no-browser",
    "browser",
    flag_value=False,
    default=True,
    help="Print the page's address and open nothing.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port of the page on 127.0.0.1; a free one if not given.",
)
@options.DEBUG
def inspect(*, file: str, **wanted: Any) -> None:
    """Show the run in STEP_LOG, which `generate --trace FILE` or `serve --trace FILE` has written, step by step."""
    from nanoserve.entrypoints.page.inspect.command import run_inspect  # noqa: PLC0415 - not needed for --help

    run_inspect(file, **wanted)


@click.command(cls=options.Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.DEBUG
def env(*, as_json: bool) -> None:
    """Show versions, processor, memory, and what multiplies weights in each form here, for bug reports."""
    from nanoserve.entrypoints.compose.bootstrap import environment, products  # noqa: PLC0415 - not needed for --help

    if as_json:
        click.echo(json.dumps({**environment(), **products()}))
        return
    for part in (environment, products):  # torch is loaded last: a broken one ends the process
        for name, value in _flat(part()):
            click.echo(f"{name:<24} {value}")


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as dotted names."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif prefix == "memory.":
            yield prefix + name, f"{value / 2**30:.1f} GiB"
        elif isinstance(value, list):
            yield prefix + name, ", ".join(map(str, value)) or "none"
        else:
            yield prefix + name, "not installed" if value is None else str(value)


@click.command(cls=options.Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@options.DEBUG
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
        told = (each.model_type, each.feed, each.cache, each.reuse, each.devices, each.quantized)
        table.add_row(*told, ", ".join(each.shapes))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False).print(table)
