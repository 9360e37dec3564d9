"""Runs `nanoserve generate` once its settings and prompts are read: load, run, write, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import attrs
import rich_click as click

from nanoserve.entrypoints.bootstrap import assemble, trace_format
from nanoserve.entrypoints.cli.jobs import make_jobs, placed
from nanoserve.entrypoints.cli.prompt_sources import Source
from nanoserve.entrypoints.cli.statistics import summarise
from nanoserve.entrypoints.cli.writers import OrderedWriter, StreamWriter, Writer, render_json, render_text
from nanoserve.entrypoints.config import Configuration, GenerateSettings
from nanoserve.entrypoints.log import log_model
from nanoserve.entrypoints.offline.collecting import Collector
from nanoserve.entrypoints.offline.progress import ProgressBar, progress_bar
from nanoserve.entrypoints.offline.requests import Job
from nanoserve.entrypoints.offline.running import PromptRefusedError
from nanoserve.entrypoints.offline.session import Progressed, Session
from nanoserve.entrypoints.traces.recording import start_recording
from nanoserve.entrypoints.traces.writer import check_trace_path
from nanoserve.ports.errors import NanoserveError
from nanoserve.ports.events import TokensGenerated


def run_generation(configuration: Configuration, sources: Sequence[Source]) -> None:
    """Generate from every source and write the answers; raises whatever goes wrong, after what was ready is written."""
    _ = configuration.sampling  # a bad value is refused before the model is loaded
    if configuration.trace.trace is not None:
        check_trace_path(configuration.trace.trace)
    started = time.monotonic()
    assembly = assemble(configuration.engine)
    load_seconds = time.monotonic() - started
    log_model(assembly)
    recording = start_recording(configuration.trace, configuration.engine, assembly, trace_format())
    with contextlib.closing(Session(assembly, recording=recording)) as session:
        _generate(configuration, sources, session, load_seconds)


def _generate(
    configuration: Configuration, sources: Sequence[Source], session: Session, load_seconds: float
) -> None:
    defaults = session.assembly.defaults
    sampling = configuration.with_model_defaults(defaults.values, defaults.origin).sampling
    jobs = make_jobs(sources, session, configuration.generate, sampling)
    run = _Run(session, jobs, _choose_writer(configuration.generate, jobs, sources))
    try:
        run.execute()
    except PromptRefusedError as error:
        raise placed(sources[error.index], error) from error
    finally:
        if configuration.generate.stats and run.collectors:
            click.echo(
                summarise(run.collectors.values(), seconds=run.seconds, load_seconds=load_seconds), err=True
            )


def _choose_writer(settings: GenerateSettings, jobs: Sequence[Job], sources: Sequence[Source]) -> Writer:
    is_single = len(jobs) == 1 and jobs[0].request.sampling.n == 1
    if is_single and not settings.json and settings.stream is not False:
        return StreamWriter()
    return OrderedWriter(jobs, sources, render_json if settings.json else render_text)


@attrs.define
class _Run:
    """One batch on its way from the engine to the writer."""

    session: Session
    jobs: Sequence[Job]
    writer: Writer
    collectors: dict[str, Collector] = attrs.field(factory=dict)
    seconds: float = 0.0

    def execute(self) -> None:
        """Run to the end, to an error or to Ctrl-C; what was generated until then is written, unless the pipe is closed."""
        started = time.monotonic()
        running = self.session.run(self.jobs)
        with contextlib.closing(running), progress_bar(len(self.jobs), enabled=len(self.jobs) > 1) as bar:
            try:
                for progressed in running:
                    self._take(progressed, bar)
                    self.seconds = time.monotonic() - started
            except (KeyboardInterrupt, NanoserveError):
                self.writer.close()
                raise
        self.writer.close()

    def _take(self, progressed: Progressed, bar: ProgressBar) -> None:
        event, collector = progressed.event, progressed.collector
        self.collectors[event.request_id] = collector
        self.writer.take(progressed)
        if isinstance(event, TokensGenerated):
            ended = event.finish_reason is not None and collector.finished
            bar.advance(tokens=len(event.token_ids), prompts=int(ended))
