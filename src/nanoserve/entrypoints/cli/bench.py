"""`nanoserve bench`: throughput and latency on random tokens, without text; and a server's from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli import options
from nanoserve.entrypoints.compose.config import command_settings
from nanoserve.entrypoints.compose.config.configuration import Configuration, sampling_settings, settings_of
from nanoserve.entrypoints.compose.config.kinds import or_none, text
from nanoserve.ports.sampling import Door

_TEMPERATURE: Final = 0.6
"""If not set: benchmarks sample, as servers do."""
_BENCH: Final = settings_of(command_settings.BenchSettings)


@click.group(cls=options.CommandGroup)
def bench() -> None:
    """Measure the engine on random tokens, without text; or, with serve, any server from outside.

    MODEL may be a published shape with random weights, such as shape:llama-3.2-1b, which needs no download.
    """


def _json_file(summary: str) -> click.Option:
    return options.option("--output-json", "--json", "json_file", help=summary)


def _benchmark(name: str, *settings: str) -> Callable[[Callable[..., None]], options.Command]:
    """The settings that all benchmarks of the engine share, around their own."""
    own = options.named(_BENCH, *settings, "input_len", "output_len", "seeds", "warmup")
    written = _json_file("Write every number, the machine and the command here.")
    return options.command(
        f"nanoserve bench {name}",
        {
            "Model": (options.MODEL, *options.LOADING),
            "Benchmark": (*own, written),
            "Sampling": sampling_settings(Door.BENCH),
            "Engine": options.ENGINE,
        },
        defaults={"temperature": _TEMPERATURE},
        argument="model",
    )


@_benchmark("throughput", "workload", "num_prompts")
def throughput(configuration: Configuration, *, json_file: str | None) -> None:
    """Run many prompts at once and report tokens per second.

    Each run draws new prompts; the first ones warm up and do not count. Answers have exactly the length asked for.
    """
    from nanoserve.entrypoints.bench.command import run_throughput  # noqa: PLC0415 - not needed for --help

    run_throughput(configuration, json_file=json_file)


@_benchmark("latency", "batch_sizes")
def latency(configuration: Configuration, *, json_file: str | None) -> None:
    """Run batches that begin together and report how long the first token, each next one and all of them take."""
    from nanoserve.entrypoints.bench.command import run_latency  # noqa: PLC0415 - not needed for --help

    run_latency(configuration, json_file=json_file)


_SERVED_MODEL: Final = attrs.evolve(
    options.MODEL,
    kind=or_none(text("NAME"), "built-in"),
    summary="The served model's name; the first that the server lists if not given.",
    default="",
)
_LENGTHS: Final = {
    "num_prompts": "Requests at each rate or concurrency; 100 if not given. With --trace, the first ones; all if not given.",
    "input_len": "Tokens (for chats: words) of each prompt; 256 if not given.",
    "output_len": "Tokens of each answer; 128 if not given.",
}


@options.command(
    "nanoserve bench serve",
    {
        "Server": (*settings_of(command_settings.ClientSettings), _SERVED_MODEL, options.API_KEY),
        "Load": (
            *settings_of(command_settings.ServeBenchSettings),
            *(attrs.evolve(each, summary=_LENGTHS[each.name]) for each in options.named(_BENCH, *_LENGTHS)),
            options.option(
                "--trace",
                "trace_file",
                help="Send the requests of a published trace at their times: Mooncake's JSON lines, or Azure's table.",
            ),
            _json_file("Write every number of every request here."),
            options.option("--plot", "plot_file", help="Draw latency against throughput into this PNG file."),
        ),
        "Sampling": sampling_settings(Door.LOAD),
    },
    defaults={"temperature": _TEMPERATURE, "ignore_eos": True},
    argument="url",
    unset="the server's",
)
def serve(configuration: Configuration, *, api_key: str | None, **files: Any) -> None:
    """Send load to the server at URL, which speaks OpenAI's protocol, and report how long the answers take.

    Latencies count from the moment at which a request was due, so a server that stalls cannot hide it.
    """
    from nanoserve.entrypoints.bench.serving.command import run_serving  # noqa: PLC0415 - not needed for --help

    run_serving(configuration, key=api_key, **files)


for _each in (throughput, latency, serve):
    bench.add_command(_each)
