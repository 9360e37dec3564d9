"""`nanoserve watch`, once its settings are read: run an experiment, print what happened, write the files asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.app.traces.writer import TraceWriter, check_trace_path
from nanoserve.entrypoints.compose.bootstrap import assemble, trace_format
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.config.setting import Sourced
from nanoserve.entrypoints.offline.experiments.experiment import Experiment
from nanoserve.entrypoints.offline.experiments.history import RunHistory
from nanoserve.entrypoints.offline.experiments.running import RecordedRun, run_experiment
from nanoserve.entrypoints.page.inspect.picture import draw, find_browser
from nanoserve.entrypoints.page.inspect.report import make_report

COMMON: Final[Mapping[str, Any]] = {"device": "cpu", "dtype": "float32", "depth": 1, "threads": 1}
"""So that every run of an experiment is the same: one step at a time, in numbers that do not depend on the batch."""


def with_experiment(configuration: Configuration, experiment: Experiment) -> Configuration:
    """The configuration with the experiment's settings in the place of defaults; what the user set stays."""
    replaced = {
        name: Sourced(value, f"the experiment {experiment.name}")
        for name, value in {**COMMON, **experiment.settings}.items()
        if configuration.values[name].origin == "default"
    }
    return Configuration({**configuration.values, **replaced})


def run_all(configuration: Configuration, experiment: Experiment) -> dict[str, RecordedRun]:
    """The experiment's runs by what tells them apart, in order; the one run of most has the empty name."""
    asked = with_experiment(configuration, experiment)
    if experiment.beside is None:
        return {"": _run(asked, experiment)}
    changed = {name: Sourced(value, "the run beside it") for name, value in experiment.beside.items()}
    runs = [asked, Configuration({**asked.values, **changed})]
    if experiment.in_one_picture:
        runs.reverse()
    return {
        ", ".join(f"{name} = {each.values[name].value}" for name in changed): _run(each, experiment)
        for each in runs
    }


def run_watch(
    configuration: Configuration,
    experiment: Experiment,
    *,
    png: str | None,
    report: str | None,
    trace: str | None,
) -> None:
    """Run it, print what happened and write the files; raises `BadValueError` for one that cannot be written."""
    if png is not None:
        find_browser()
    for name, path in (("png", png), ("report", report), ("trace", trace)):
        if path is not None:
            check_trace_path(path, name=name)
    runs = run_all(configuration, experiment)
    click.echo(f"{experiment.name}: {experiment.title}")
    answers = []
    for name, run in runs.items():
        history = RunHistory(run.header, run)
        answers.append([each.answer for each in history.sequences.values()])
        for line in [f"{name}:"] * bool(name) + list(history.lines()):
            click.echo(line)
    if len(answers) > 1:
        same = sum(one == other for one, other in zip(*answers, strict=True))
        click.echo(f"{same} of {len(answers[0])} answers are the same in both runs, token for token")
    first, *others = runs.values()
    settings = {name: each.value for name, each in with_experiment(configuration, experiment).values.items()}
    shown = first.followed_by(others[0]) if experiment.in_one_picture else first
    if report is not None or png is not None:
        caption = f"{experiment.name}: {experiment.caption.format(**settings)}"
        document = make_report(shown.header, shown, trace_format(), caption=caption)
        if report is not None:
            Path(report).write_bytes(document)
        if png is not None:
            draw(document, png)
    if trace is not None:
        with TraceWriter(trace, shown.header, trace_format()) as writer:
            writer.write(shown)


def _run(configuration: Configuration, experiment: Experiment) -> RecordedRun:
    settings = configuration.engine
    return run_experiment(experiment.requests, settings, assemble(settings))
