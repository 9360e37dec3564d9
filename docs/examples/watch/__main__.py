"""Six scripted experiments, each of which makes one idea of the engine visible; docs/watch-a-request.md explains them.

    python -m docs.examples.watch [EXPERIMENT] [--png FILE] [--report FILE] [--trace FILE] [--SETTING VALUE ...]

Without EXPERIMENT they are listed. A setting is any engine option of `nanoserve serve`; it overrules the experiment's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from docs.examples.watch.experiment import EXPERIMENTS, Experiment, find_experiment
from docs.examples.watch.history import RunHistory
from docs.examples.watch.running import RecordedRun, run_experiment
from nanoserve.entrypoints.app.traces.writer import TraceWriter, check_trace_path
from nanoserve.entrypoints.compose.bootstrap import assemble, trace_format
from nanoserve.entrypoints.compose.config import Configuration, EngineSettings
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.config.setting import Sourced
from nanoserve.entrypoints.page.inspect.picture import draw, find_browser
from nanoserve.entrypoints.page.inspect.report import make_report
from nanoserve.ports.errors import NanoserveError

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
    print(f"{experiment.name}: {experiment.title}")
    answers = []
    for name, run in runs.items():
        history = RunHistory(run.header, run)
        answers.append([each.answer for each in history.sequences.values()])
        for line in [f"{name}:"] * bool(name) + list(history.lines()):
            print(line)
    if len(answers) > 1:
        same = sum(one == other for one, other in zip(*answers, strict=True))
        print(f"{same} of {len(answers[0])} answers are the same in both runs, token for token")
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


def main() -> None:
    """Run the experiment asked for, or list them; an error is one line."""
    parser = argparse.ArgumentParser(prog="python -m docs.examples.watch", allow_abbrev=False)
    parser.add_argument("experiment", nargs="?", choices=[each.name for each in EXPERIMENTS])
    for name in ("png", "report", "trace"):
        parser.add_argument(f"--{name}", metavar="FILE")
    for setting in attrs.fields(EngineSettings):
        action = argparse.BooleanOptionalAction if isinstance(setting.default, bool) else "store"
        parser.add_argument(f"--{setting.name.replace('_', '-')}", action=action, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.experiment is None:
        for each in EXPERIMENTS:
            print(f"{each.name:<16} {each.title}")
        return
    try:
        configuration = read_configuration(
            {each.name: getattr(asked, each.name) for each in attrs.fields(EngineSettings)}, {}
        )
        experiment = find_experiment(asked.experiment)
        run_watch(configuration, experiment, png=asked.png, report=asked.report, trace=asked.trace)
    except NanoserveError as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
