"""`nanoserve bench serve`: how a server behaves under load, measured from outside."""

from __future__ import annotations

from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.compose.config.bench_settings import BENCH_SETTINGS
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.kinds import Optional, Text
from nanoserve.entrypoints.compose.config.sampling_settings import sampling_settings
from nanoserve.entrypoints.compose.config.serve_bench_settings import SERVE_BENCH_SETTINGS
from nanoserve.entrypoints.compose.config.shared_settings import CLIENT_SETTINGS, LOG_SETTINGS
from nanoserve.ports.parameter import Door

ORIGIN: Final = "nanoserve bench serve"
TEMPERATURE: Final = 0.6

_MODEL: Final = attrs.evolve(
    ENGINE_SETTINGS[0],
    kind=Optional(Text("NAME"), "built-in"),
    summary="The served model's name; the first that the server lists if not given.",
    default="",
)
_LENGTHS: Final = tuple(
    attrs.evolve(each, summary=summary)
    for each in BENCH_SETTINGS
    for summary in (
        {
            "input_len": "Tokens (for chats: words) of each prompt; 256 if not given.",
            "output_len": "Tokens of each answer; 128 if not given.",
        }.get(each.name),
    )
    if summary is not None
)
_DEFAULTS: Final[dict[str, Any]] = {"temperature": TEMPERATURE, "ignore_eos": True}
_SAMPLING: Final = sampling_settings(Door.LOAD, **_DEFAULTS)
SETTINGS: Final = (*CLIENT_SETTINGS, _MODEL, *SERVE_BENCH_SETTINGS, *_LENGTHS, *_SAMPLING, *LOG_SETTINGS)

click.rich_click.OPTION_GROUPS["nanoserve bench serve"] = [
    panel("Server", (*CLIENT_SETTINGS, _MODEL), "--api-key"),
    panel("Load", (*SERVE_BENCH_SETTINGS, *_LENGTHS), "--json", "--plot"),
    panel("Sampling", _SAMPLING),
    panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
]


@click.command()
@click.option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)
@click.option("--json", "json_file", metavar="FILE", help="Write every number of every request here.")
@click.option(
    "--plot", "plot_file", metavar="FILE", help="Draw latency against throughput into this PNG file."
)
@settings_options(*SETTINGS)
@click.pass_obj
def serve(
    reporting: Reporting,
    /,
    *,
    api_key: str | None,
    json_file: str | None,
    plot_file: str | None,
    **flags: Any,
) -> None:
    """Send load to a server that speaks OpenAI's protocol and report how long the answers take.

    Latencies count from the moment at which a request was due, so a server that stalls cannot hide it.
    """
    configuration = read_settings(flags, reporting).with_model_defaults(_DEFAULTS, ORIGIN)
    if flags["print_config"]:
        _ = configuration.sampling  # a value out of range is an error here too
        print_configuration(configuration, SETTINGS)
        return
    from nanoserve.entrypoints.bench.serving.command import run_serving  # noqa: PLC0415 - not needed for --help

    run_serving(configuration, key=api_key, json_file=json_file, plot_file=plot_file)
