"""Runs `nanoserve verify` once its settings are read: load both models, compare, print the table."""

from __future__ import annotations

import attrs
import rich_click as click

from nanoserve.entrypoints.compose.bootstrap import assemble_for_verification
from nanoserve.entrypoints.compose.config import Configuration, EngineSettings
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.offline.session import Session
from nanoserve.entrypoints.offline.verification.checks import Verdict, verify


def run_verification(configuration: Configuration) -> bool:
    """Whether the model computes what transformers computes; prints one row per thing compared."""
    settings = configuration.verify
    parts = assemble_for_verification(_in_float32(configuration.engine))
    log_model(parts.assembly)
    session = Session(parts.assembly)
    verdict = verify(session, parts.ours, parts.reference, settings.verify_prompt, settings.verify_tokens)
    _print_verdict(verdict, settings.tolerance)
    return verdict.passed(settings.tolerance)


def _in_float32(settings: EngineSettings) -> EngineSettings:
    return attrs.evolve(settings, dtype="float32") if settings.dtype == "auto" else settings


def _print_verdict(verdict: Verdict, tolerance: float) -> None:
    click.echo(f"{'compared':<18} {'worst error':>12} {'magnitude':>12}  result")
    for each in verdict.comparisons:
        result = "ok" if each.within(tolerance) else "DIFFERS"
        click.echo(f"{each.name:<18} {each.error:>12.3e} {each.magnitude:>12.3e}  {result}")
    result = "ok" if verdict.same_tokens else "DIFFERS"
    counted = f"{verdict.num_equal_tokens} of {len(verdict.reference_tokens)} equal"
    click.echo(f"{'greedy tokens':<18} {counted:>25}  {result}")
    passed = verdict.passed(tolerance)
    click.echo("verified" if passed else f"not verified (tolerance {tolerance:g} of the magnitude)")
