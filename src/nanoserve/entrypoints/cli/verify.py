"""`nanoserve verify`: is this model computed as transformers computes it?"""

from __future__ import annotations

import sys
from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.cli.failures import FAILED, Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.offline_settings import VERIFY_SETTINGS
from nanoserve.entrypoints.compose.config.shared_settings import LOG_SETTINGS

SETTINGS: Final = (*ENGINE_SETTINGS[:1], *VERIFY_SETTINGS, *ENGINE_SETTINGS[1:], *LOG_SETTINGS)

click.rich_click.OPTION_GROUPS["nanoserve verify"] = [
    panel("Comparison", (ENGINE_SETTINGS[0], *VERIFY_SETTINGS)),
    panel("Engine", ENGINE_SETTINGS[1:]),
    panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
]


@click.command()
@settings_options(*SETTINGS)
@click.pass_obj
def verify(reporting: Reporting, /, **flags: Any) -> None:
    """Compare every layer, the logits, greedy tokens and log-probabilities with transformers.

    Both sides compute in float32 unless --dtype says otherwise. Exits with 1 where anything differs.
    """
    configuration = read_settings(flags, reporting)
    if flags["print_config"]:
        print_configuration(configuration, SETTINGS)
        return
    from nanoserve.entrypoints.cli.verification import run_verification  # noqa: PLC0415 - loads torch

    if not run_verification(configuration):
        sys.exit(FAILED)
