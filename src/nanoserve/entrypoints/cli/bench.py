"""`nanoserve bench`: throughput and latency on random tokens, without text; and a server's from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.help import Command, CommandGroup
from nanoserve.entrypoints.cli.options import (
    ENGINE,
    LOADING,
    MODEL,
    Panels,
    api_key_option,
    configured,
    named,
)
from nanoserve.entrypoints.compose.config.command_settings import (
    BenchSettings,
    ClientSettings,
    ServeBenchSettings,
)
from nanoserve.entrypoints.compose.config.configuration import Configuration, sampling_settings, settings_of
from nanoserve.entrypoints.compose.config.kinds import or_none, text
from nanoserve.ports.parameter import Door

_TEMPERATURE: Final = 0.6
"""If not set: benchmarks sample, as servers do."""
_BENCH: Final = settings_of(BenchSettings)
_REPEATS: Final = ("seeds", "warmup")


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure the engine on random tokens, without text; or, with serve, any server from outside.

    MODEL may be a published shape with random weights, such as shape:llama-3.2-1b, which needs no download.
    """


def _benchmark(name: str, *settings: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The settings that all benchmarks of the engine share, around their own."""
    panels: Panels = {
        "Model": (MODEL, *LOADING),
        "Benchmark": (*named(_BENCH, *settings), "--output-json"),
        "Sampling": sampling_settings(Door.BENCH),
        "Engine": ENGINE,
    }
    options = configured(
        f"nanoserve bench {name}", panels, defaults={"temperature": _TEMPERATURE}, argument="model"
    )
    help_text = "Write every number, the machine and the command here."
    json_file = click.option("--output-json", "--json", "json_file", metavar="FILE", help=help_text)
    return lambda command: bench.command(name, cls=Command)(json_file(options(command)))


@_benchmark("throughput", "workload", "num_prompts", "input_len", "output_len", *_REPEATS)
def throughput(configuration: Configuration, *, json_file: str | None) -> None:
    """Run many prompts at once and report tokens per second.

    Each run draws new prompts; the first ones warm up and do not count. Answers have exactly the length asked for.
    """
    from nanoserve.entrypoints.bench.command import run_throughput  # noqa: PLC0415 - not needed for --help

    run_throughput(configuration, json_file=json_file)


@_benchmark("latency", "batch_sizes", "input_len", "output_len", *_REPEATS)
def latency(configuration: Configuration, *, json_file: str | None) -> None:
    """Run batches that begin together and report how long the first token, each next one and all of them take."""
    from nanoserve.entrypoints.bench.command import run_latency  # noqa: PLC0415 - not needed for --help

    run_latency(configuration, json_file=json_file)


_SERVED_MODEL: Final = attrs.evolve(
    MODEL,
    kind=or_none(text("NAME"), "built-in"),
    summary="The served model's name; the first that the server lists if not given.",
    default="",
)
_LENGTHS: Final = {
    "num_prompts": "Requests at each rate or concurrency; 100 if not given.",
    "input_len": "Tokens (for chats: words) of each prompt; 256 if not given.",
    "output_len": "Tokens of each answer; 128 if not given.",
}
_LOAD: Final = (
    *settings_of(ServeBenchSettings),
    *(attrs.evolve(each, summary=_LENGTHS[each.name]) for each in named(_BENCH, *_LENGTHS)),
)


@bench.command(cls=Command)
@configured(
    "nanoserve bench serve",
    {
        "Server": (*settings_of(ClientSettings), _SERVED_MODEL, "--api-key"),
        "Load": (*_LOAD, "--output-json", "--plot"),
        "Sampling": sampling_settings(Door.LOAD),
    },
    defaults={"temperature": _TEMPERATURE, "ignore_eos": True},
    argument="url",
    unset="the server's",
)
@api_key_option
@click.option(
    "--output-json", "--json", "json_file", metavar="FILE", help="Write every number of every request here."
)
@click.option(
    "--plot", "plot_file", metavar="FILE", help="Draw latency against throughput into this PNG file."
)
def serve(
    configuration: Configuration, *, api_key: str | None, json_file: str | None, plot_file: str | None
) -> None:
    """Send load to the server at URL, which speaks OpenAI's protocol, and report how long the answers take.

    Latencies count from the moment at which a request was due, so a server that stalls cannot hide it.
    """
    from nanoserve.entrypoints.bench.serving.command import run_serving  # noqa: PLC0415 - not needed for --help

    run_serving(configuration, key=api_key, json_file=json_file, plot_file=plot_file)
