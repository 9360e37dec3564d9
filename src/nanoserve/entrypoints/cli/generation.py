"""Runs `nanoserve generate` and `embed` once their settings and prompts are read: load, run, write, report."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import rich_click as click

from nanoserve.entrypoints.app.traces.writer import check_trace_path
from nanoserve.entrypoints.cli.prompt_sources import Source
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.bootstrap import assemble, check_constraint, leave_unread, trace_format
from nanoserve.entrypoints.compose.config.command_settings import GenerateSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, override_sampling
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.compose.recording import start_recording
from nanoserve.entrypoints.offline.outputs import (
    CompletionOutput,
    PositionLogprobs,
    Prompt,
    PromptJob,
    RequestOutput,
)
from nanoserve.entrypoints.offline.session import PromptRefusedError, Session
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.pooling import Task
from nanoserve.ports.sampling import SamplingParams


def run_generation(
    configuration: Configuration, sources: Sequence[Source], common: Source | None = None
) -> None:
    """Generate from every source, which has the constraint of `common` if it has none, and write the answers; raises errors after finished ones are written."""
    common = common or Source()
    _check_constraints([common, *sources])
    if configuration.trace.trace is not None:
        check_trace_path(configuration.trace.trace)
    started = time.monotonic()
    leave_unread()
    assembly = assemble(configuration.engine)
    load_seconds = time.monotonic() - started
    log_model(assembly)
    recording = start_recording(configuration.trace, configuration.engine, assembly, trace_format())
    with contextlib.closing(Session(assembly, recording=recording)) as session:
        _generate(configuration, sources, session, load_seconds, common.constraint)


def _check_constraints(sources: Sequence[Source]) -> None:
    """Before a model is loaded, whatever can be known without one."""
    for asked, source in {each.constraint: each for each in reversed(sources)}.items():
        try:
            if asked is not None:
                check_constraint(asked)
        except BadValueError as error:
            raise placed(source, error) from error


def _generate(
    configuration: Configuration,
    sources: Sequence[Source],
    session: Session,
    load_seconds: float,
    constraint: Constraint | None,
) -> None:
    """Run to the end, to an error or to Ctrl-C; text generated until then is written, unless the pipe is closed."""
    defaults = session.assembly.defaults
    sampling = configuration.with_model_defaults(defaults.values, defaults.origin).sampling
    jobs = make_jobs(sources, session, configuration.generate, sampling, constraint)
    writer = _choose_writer(configuration.generate, jobs, sources)
    started = ended = time.monotonic()
    try:
        with contextlib.closing(session.run(jobs, progress=len(jobs) > 1)) as events:
            for event in events:
                writer.take(event)
                ended = time.monotonic()
        writer.close()
    except (KeyboardInterrupt, NanoserveError) as error:
        writer.close()
        if isinstance(error, PromptRefusedError):
            raise placed(sources[error.index], error) from error
        raise
    finally:
        have_run = [job for job in jobs if job.has_run]
        if configuration.generate.stats and have_run:
            text = summarise(have_run, seconds=ended - started, load_seconds=load_seconds)
            click.echo(text + _further(session.assembly), err=True)


def _choose_writer(
    settings: GenerateSettings, jobs: Sequence[PromptJob], sources: Sequence[Source]
) -> Writer:
    is_single = len(jobs) == 1 and jobs[0].request.sampling.n == 1
    if is_single and not settings.json and settings.stream is not False:
        return StreamWriter()
    return OrderedWriter(jobs, sources, render_json if settings.json else render_text)


def summarise(jobs: Iterable[PromptJob], *, seconds: float, load_seconds: float) -> str:
    """Tokens, times and rates; `seconds` is the time from the first request's arrival to the last token."""
    outputs = [each.output() for each in jobs]
    generated = sum(len(sequence.token_ids) for each in outputs for sequence in each.outputs)
    metrics = [each.metrics for each in outputs if each.metrics]
    first = [each.time_to_first_token for each in metrics if each.time_to_first_token is not None]
    numbers: Mapping[str, str] = {
        "prompts": str(len(outputs)),
        "prompt tokens": str(sum(len(each.prompt_token_ids) for each in outputs)),
        "prefix hits": str(sum(each.num_cached_tokens for each in metrics)),
        "generated tokens": str(generated),
        "time to first token": f"{statistics.median(first) * 1000:.0f} ms" if first else "none",
        "tok/s": f"{generated / seconds:.1f}" if seconds else "0",
        "total": f"{seconds:.2f} s",
        "load": f"{load_seconds:.2f} s",
        "preemptions": str(sum(each.num_preemptions for each in metrics)),
    }
    return ", ".join(f"{name} {value}" for name, value in numbers.items())


def _further(assembly: Assembly) -> str:
    """The numbers of compared and of right drafts, if the engine makes some; the balance of whole experts over ranks."""
    state, found = assembly.engine.state(), ""
    if assembly.facts.max_width > 1:
        found += f", drafts {state.draft_tokens}, accepted drafts {state.accepted_tokens}"
    if state.expert_tokens:
        found += f", balance of experts {state.expert_balance:.2f}"
    return found


def make_jobs(
    sources: Sequence[Source],
    session: Session,
    settings: GenerateSettings,
    sampling: SamplingParams,
    constraint: Constraint | None = None,
) -> list[PromptJob]:
    """One job per source, whose own constraint comes first; raises `BadValueError` with the source's place."""
    jobs = []
    for each in sources:
        try:
            own = override_sampling(sampling, each.sampling, each.place) if each.sampling else sampling
            jobs.append(
                session.job(_read(each, session, settings), own, each.priority, each.constraint or constraint)
            )
        except BadValueError as error:
            raise placed(each, error) from error
    return jobs


def placed(source: Source, error: BadValueError) -> BadValueError:
    """The error with the place of the prompt that caused it."""
    reason = error.reason if isinstance(error, PromptRefusedError) else str(error)
    if not source.place or source.place in reason:
        return error
    return BadValueError(source.place, reason)


def _read(source: Source, session: Session, settings: GenerateSettings) -> Prompt:
    if source.messages is not None:
        return session.read_conversation(_with_system(source.messages, settings.system))
    if settings.is_chat and isinstance(source.prompt, str):
        return session.read_conversation(
            _with_system([{"role": "user", "content": source.prompt}], settings.system)
        )
    return session.read_prompt(source.prompt)


def _with_system(messages: Any, system: str | None) -> list[dict[str, Any]]:
    """The messages, opened by the system message unless they bring their own."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadValueError("messages", "must be a list of objects with `role` and `content`")
    has_system = bool(messages) and messages[0].get("role") == "system"
    return messages if system is None or has_system else [{"role": "system", "content": system}, *messages]


class StreamWriter:
    """One answer, shown while it grows."""

    def __init__(self) -> None:
        self._ends_line = True

    def take(self, event: EngineEvent) -> None:
        """Write the new text at once."""
        if isinstance(event, TokensGenerated) and event.text:
            click.echo(event.text, nl=False)
            self._ends_line = event.text.endswith("\n")

    def close(self) -> None:
        """End the last line."""
        if not self._ends_line:
            click.echo()


class OrderedWriter:
    """Many answers, each whole, written as soon as all before it are written."""

    def __init__(
        self,
        jobs: Sequence[PromptJob],
        sources: Sequence[Source],
        render: Callable[[RequestOutput, Source], str],
    ) -> None:
        self._waiting = deque(zip(jobs, sources, strict=True))
        self._render = render

    def take(self, _event: EngineEvent) -> None:
        """Write every finished answer that is next."""
        while self._waiting and self._waiting[0][0].finished:
            self._write_next()

    def close(self) -> None:
        """Write the text of unfinished answers."""
        while self._waiting:
            self._write_next()

    def _write_next(self) -> None:
        job, source = self._waiting.popleft()
        if job.has_run and (text := self._render(job.output(), source)):
            click.echo(text)


Writer = StreamWriter | OrderedWriter
"""Takes events, writes text that can be shown, and at the end the rest, also after an interruption."""


def render_text(output: RequestOutput, _source: Source) -> str:
    """Nothing but the answers, one after the other."""
    return "\n".join(each.text for each in output.outputs if each.text or each.finish_reason != "abort")


def render_json(output: RequestOutput, source: Source) -> str:
    """One JSON object: the first answer's fields, all answers under `choices` if there are several, and the usage."""
    choices = [_choice(each) for each in output.outputs]
    prompt, generated = len(output.prompt_token_ids), sum(len(each.token_ids) for each in output.outputs)
    answer = {"id": source.id, **choices[0]}
    if len(choices) > 1:
        answer["choices"] = choices
    if output.prompt_logprobs:
        answer["prompt_logprobs"] = [each and _position(each) for each in output.prompt_logprobs]
    answer["usage"] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "cached_tokens": output.num_cached_tokens,
    }
    return json.dumps(answer, ensure_ascii=False)


def _choice(completion: CompletionOutput) -> dict[str, Any]:
    logprobs = completion.logprobs
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "logprobs": None if logprobs is None else [_position(each) for each in logprobs],
    }


def _position(entries: PositionLogprobs) -> list[dict[str, Any]]:
    """One position: the actual token first."""
    return [
        {"token_id": token, "token": entry.decoded_token, "logprob": entry.logprob, "rank": entry.rank}
        for token, entry in entries.items()
    ]


def run_embedding(
    configuration: Configuration, sources: Sequence[Source], prompt_name: str | None, dimensions: int | None
) -> None:
    """Write one JSON object for each source, in their order, once all are computed."""
    leave_unread()
    assembly = assemble(configuration.engine)
    log_model(assembly)
    with contextlib.closing(Session(assembly)) as session:
        pooler = session.pooler(Task.EMBED)
        pooler.check_dimensions(dimensions)
        before = pooler.prompt(prompt_name)
        prompts = []
        for source in sources:
            try:
                prompts.append(session.read_text(source.prompt, before))
            except BadValueError as error:
                raise placed(source, error) from error
        try:
            found = session.pool(prompts, pooler, progress=len(prompts) > 1)
        except PromptRefusedError as error:
            raise placed(sources[error.index], error) from error
        for source, (job, pooled) in zip(sources, found, strict=True):
            vector = pooler.vector(pooled, dimensions)
            shown = {"id": source.id, "embedding": vector, "prompt_tokens": len(job.prompt.token_ids)}
            click.echo(json.dumps(shown))
