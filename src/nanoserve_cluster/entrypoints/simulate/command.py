"""`nanoserve simulate` and `nanoserve bench calibrate`: what a cluster of replicas would do, on paper."""

from __future__ import annotations

from typing import Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.options import ENGINE, LOADING, MODEL, Command, command, named, option
from nanoserve.entrypoints.compose.config.command_settings import ServeBenchSettings
from nanoserve.entrypoints.compose.config.configuration import SAMPLING_SETTINGS, Configuration, settings_of
from nanoserve_cluster.entrypoints import HELP
from nanoserve_cluster.entrypoints.simulate.settings import ClusterSettings, TrafficSettings

_MODEL: Final = attrs.evolve(
    MODEL, summary="A model folder or shape:NAME; only its dimensions are read.", default="shape:llama-3.1-8b"
)
_SEED: Final = tuple(
    attrs.evolve(each, summary="Draws the trace, and what policies leave to chance.", default=0)
    for each in named(SAMPLING_SETTINGS, "seed")
)
_SLO: Final = tuple(
    attrs.evolve(each, summary="Most milliseconds of a good request: ttft:500,tpot:50,e2e:5000.")
    for each in named(settings_of(ServeBenchSettings), "slo")
)
_LIMITS: Final = named(
    (*LOADING, *ENGINE),
    *("block_size", "num_kv_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
    *("max_itl_ms", "depth"),
)


@command(
    "nanoserve simulate",
    {
        "Requests": (*settings_of(TrafficSettings), *_SEED),
        "Cluster": (_MODEL, *settings_of(ClusterSettings)),
        "Each replica's engine": _LIMITS,
        "Report": (
            *_SLO,
            option("--output-json", "--json", "json_file", help="Write every figure of every run here."),
            option("--plot", "plot_file", help="Draw the figures over time into this PNG file."),
        ),
    },
    defaults={"block_size": 64},
    pages=HELP,
)
def simulate(configuration: Configuration, *, json_file: str | None, plot_file: str | None) -> None:
    """Simulate a cluster: the server's own scheduler, in simulated time.

    Says what times to first token, times between tokens and cache hits requests would see, with so many replicas and each
    router policy, and when replicas die, restart or are added. Needs no GPU.
    """
    from nanoserve_cluster.entrypoints.simulate.run import run_simulation  # noqa: PLC0415 - not needed for --help

    run_simulation(configuration, json_file=json_file, plot_file=plot_file)


@click.command(cls=Command, pages=HELP)
@click.argument("log", metavar="STEP_LOG", type=click.Path())
@click.option(
    "--out", metavar="FILE", help="Write the cost of a step here, for nanoserve simulate --cost FILE."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def calibrate(*, log: str, out: str | None) -> None:
    """Find out from a step log (--trace) how long steps take on the device that it was recorded on, and how well that is known."""
    from nanoserve_cluster.entrypoints.simulate.calibration import run_calibration  # noqa: PLC0415 - not needed for --help

    run_calibration(log, out)
