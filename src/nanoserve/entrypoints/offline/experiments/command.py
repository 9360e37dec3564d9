"""`nanoserve watch`, once its settings are read: run an experiment, say what happened, write what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.config.setting import Sourced
from nanoserve.entrypoints.offline.experiments.experiment import Experiment
from nanoserve.entrypoints.offline.experiments.history import History
from nanoserve.entrypoints.offline.experiments.outputs import Wanted
from nanoserve.entrypoints.offline.experiments.running import Recorded, run_experiment

COMMON: Final[Mapping[str, Any]] = {"device": "cpu", "dtype": "float32", "depth": 1, "threads": 1}
"""So that every run of an experiment is the same: one step at a time, in numbers that do not depend on the batch."""


def with_experiment(configuration: Configuration, experiment: Experiment) -> Configuration:
    """The configuration with the experiment's settings in the place of defaults; what somebody set stays."""
    return _with_defaults(
        configuration, {**COMMON, **experiment.settings}, f"the experiment {experiment.name}"
    )


def run_pair(configuration: Configuration, experiment: Experiment) -> tuple[Recorded, Recorded | None]:
    """The experiment's run, and the one beside it where it has one, which goes first."""
    asked = with_experiment(configuration, experiment)
    if experiment.beside is None:
        return _run(asked, experiment), None
    changed = {name: Sourced(value, "the run beside it") for name, value in experiment.beside.items()}
    beside = _run(Configuration({**asked.values, **changed}), experiment)
    return _run(asked, experiment), beside


def _run(configuration: Configuration, experiment: Experiment) -> Recorded:
    settings = configuration.engine
    return run_experiment(experiment.requests, settings, assemble(settings))


def _with_defaults(configuration: Configuration, values: Mapping[str, Any], origin: str) -> Configuration:
    replaced = {
        name: Sourced(value, origin)
        for name, value in values.items()
        if configuration.values[name].origin == "default"
    }
    return Configuration({**configuration.values, **replaced})


def run_watch(configuration: Configuration, experiment: Experiment, wanted: Wanted) -> None:
    """Run it, say what happened and write the files; raises `BadValueError` for one that cannot be written."""
    wanted.check()
    run, beside = run_pair(configuration, experiment)
    history = History(run.header, run)
    before = None if beside is None else History(beside.header, beside)
    click.echo(f"{experiment.name}: {experiment.title}")
    for line in experiment.tell(history, before):
        click.echo(f"- {line}")
    shown = beside.followed_by(run) if beside and experiment.in_one_picture else run
    settings = {name: each.value for name, each in with_experiment(configuration, experiment).values.items()}
    wanted.write(shown, f"{experiment.name}: {experiment.caption.format(**settings)}")
