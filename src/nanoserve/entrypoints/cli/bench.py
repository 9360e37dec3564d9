"""`nanoserve bench`: throughput, latency and start, on random tokens, without text; and a server's from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import rich_click as click

from nanoserve.entrypoints.cli.bench_serve import serve
from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.compose.config.bench_settings import BENCH_SETTINGS
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.sampling_settings import sampling_settings
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.entrypoints.compose.config.shared_settings import LOG_SETTINGS
from nanoserve.ports.parameter import Door

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
TEMPERATURE: Final = 0.6
"""Where nobody sets one: benchmarks sample, as servers do."""
ORIGIN: Final = "nanoserve bench"

_MODEL, *_ENGINE = ENGINE_SETTINGS
_SAMPLING: Final = sampling_settings(Door.BENCH, temperature=TEMPERATURE)


def _named(*names: str) -> tuple[Setting, ...]:
    return tuple(each for each in BENCH_SETTINGS if each.name in names)


_REPEATS: Final = ("seeds", "warmup", "bandwidth", "vs")
THROUGHPUT: Final = _named("workload", "num_prompts", "input_len", "output_len", "compute", *_REPEATS)
LATENCY: Final = _named("batch_sizes", "input_len", "output_len", *_REPEATS)
STARTUP: Final = _named("input_len")

for _command, _own, _flags in (
    ("throughput", THROUGHPUT, ("--profile",)),
    ("latency", LATENCY, ("--profile",)),
    ("startup", STARTUP, ("--cold",)),
):
    click.rich_click.OPTION_GROUPS[f"nanoserve bench {_command}"] = [
        panel("Benchmark", (_MODEL, *_own), *_flags, "--json"),
        panel("Sampling", _SAMPLING),
        panel("Engine", _ENGINE),
        panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
    ]


@click.group()
def bench() -> None:
    """Measure the engine on random tokens, without text; or, with serve, any server from outside.

    --model also takes a published shape with random weights, such as shape:llama-3.2-1b, which needs no download.
    """


bench.add_command(serve)


def _options(own: Sequence[Setting]) -> Callable[[CommandT], CommandT]:
    """What all benchmarks have in common, around their own settings."""

    def decorate(command: CommandT) -> CommandT:
        command = settings_options(_MODEL, *own, *_SAMPLING, *_ENGINE, *LOG_SETTINGS)(command)
        return click.option(
            "--json",
            "json_file",
            metavar="FILE",
            help="Write every number, the machine and the command here.",
        )(command)

    return decorate


_profile = click.option(
    "--profile", is_flag=True, help="Also show where the time of a few steps goes, by kernel."
)


@bench.command()
@_options(THROUGHPUT)
@_profile
@click.pass_obj
def throughput(reporting: Reporting, /, *, json_file: str | None, profile: bool, **flags: Any) -> None:
    """Run many prompts at once and report tokens per second.

    Each run draws new prompts; the first ones warm up and do not count. Answers have exactly the length asked for.
    """
    configuration = _read(flags, reporting, THROUGHPUT)
    if configuration is not None:
        from nanoserve.entrypoints.bench.throughput import run_throughput  # noqa: PLC0415 - not needed for --help

        run_throughput(configuration, json_file=json_file, profile=profile)


@bench.command()
@_options(LATENCY)
@_profile
@click.pass_obj
def latency(reporting: Reporting, /, *, json_file: str | None, profile: bool, **flags: Any) -> None:
    """Run batches that begin together and report how long the first token, each next one and all of them take."""
    configuration = _read(flags, reporting, LATENCY)
    if configuration is not None:
        from nanoserve.entrypoints.bench.latency import run_latency  # noqa: PLC0415 - not needed for --help

        run_latency(configuration, json_file=json_file, profile=profile)


@bench.command()
@_options(STARTUP)
@click.option(
    "--cold", is_flag=True, help="Compile every kernel anew instead of taking it from Triton's cache."
)
@click.pass_obj
def startup(reporting: Reporting, /, *, json_file: str | None, cold: bool, **flags: Any) -> None:
    """Start an engine and report what the time up to the first token was spent on."""
    configuration = _read(flags, reporting, STARTUP)
    if configuration is not None:
        from nanoserve.entrypoints.bench.startup import run_startup  # noqa: PLC0415 - not needed for --help

        run_startup(configuration, json_file=json_file, cold=cold)


def _read(flags: dict[str, Any], reporting: Reporting, own: Sequence[Setting]) -> Configuration | None:
    """The configuration; None where it was only to be shown."""
    configuration = read_settings(flags, reporting).with_model_defaults({"temperature": TEMPERATURE}, ORIGIN)
    if not flags["print_config"]:
        return configuration
    _ = configuration.sampling  # a value out of range is an error here too
    print_configuration(configuration, (_MODEL, *own, *_SAMPLING, *_ENGINE, *LOG_SETTINGS))
    return None
