"""`nanoserve verify`: is this model computed as transformers computes it?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.failures import FAILED
from nanoserve.entrypoints.cli.help import Command
from nanoserve.entrypoints.cli.options import ENGINE, LOADING, MODEL, Panels, configured
from nanoserve.entrypoints.compose.config.command_settings import VerifySettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, settings_of

if TYPE_CHECKING:
    from nanoserve.entrypoints.offline.verification import VerifyVerdict

_PANELS: Final[Panels] = {
    "Model": (MODEL, *LOADING),
    "Comparison": settings_of(VerifySettings),
    "Engine": ENGINE,
}


@click.command(cls=Command)
@configured("nanoserve verify", _PANELS, argument="model")
def verify(configuration: Configuration) -> None:
    """Compare every layer of MODEL, the logits, greedy tokens and log-probabilities with transformers.

    Both sides compute in float32 unless --dtype says otherwise. Exits with 1 where anything differs.
    """
    from nanoserve.entrypoints.compose.bootstrap import assemble_for_verification  # noqa: PLC0415 - loads torch
    from nanoserve.entrypoints.compose.log import log_model  # noqa: PLC0415 - not needed for --help
    from nanoserve.entrypoints.offline import verification  # noqa: PLC0415 - as above
    from nanoserve.entrypoints.offline.session import Session  # noqa: PLC0415 - as above

    settings, engine = configuration.verify, configuration.engine
    parts = assemble_for_verification(
        attrs.evolve(engine, dtype="float32") if engine.dtype == "auto" else engine
    )
    log_model(parts.assembly)
    verdict = verification.verify(
        Session(parts.assembly), parts.ours, parts.reference, settings.verify_prompt, settings.verify_tokens
    )
    _print_verdict(verdict, settings.tolerance)
    if not verdict.passed(settings.tolerance):
        sys.exit(FAILED)


def _print_verdict(verdict: VerifyVerdict, tolerance: float) -> None:
    click.echo(f"{'compared':<18} {'worst error':>12} {'magnitude':>12}  result")
    for each in verdict.comparisons:
        result = "ok" if each.within(tolerance) else "DIFFERS"
        click.echo(f"{each.name:<18} {each.error:>12.3e} {each.magnitude:>12.3e}  {result}")
    result = "ok" if verdict.same_tokens else "DIFFERS"
    counted = f"{verdict.num_equal_tokens} of {len(verdict.reference_tokens)} equal"
    click.echo(f"{'greedy tokens':<18} {counted:>25}  {result}")
    passed = verdict.passed(tolerance)
    click.echo("verified" if passed else f"not verified (tolerance {tolerance:g} of the magnitude)")
