"""One engine, which runs prompts to their ends, for the `LLM` class and the command line."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from nanoserve.entrypoints.app.generation import Reading
from nanoserve.entrypoints.app.orders import RequestBuilder, TextPair
from nanoserve.entrypoints.app.text_service import encode_bad_words
from nanoserve.entrypoints.app.traces.writer import Recording
from nanoserve.entrypoints.app.vectors import check_task, check_text, pair_prompts
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.interrupts import deferring_interrupts
from nanoserve.entrypoints.compose.process import without_full_collections
from nanoserve.entrypoints.offline.outputs import Prompt, PromptJob
from nanoserve.ports.checks import check_integer
from nanoserve.ports.driven import Message
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import BadValueError, ConflictError, NanoserveError, StepFailedError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.grammar import Constraint, check_fault
from nanoserve.ports.pooling import PoolerSpec, Task
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams


class Session:
    """Turns prompts into jobs and runs them; one caller at a time, others wait their turn.

    `recording` is of the assembly's engine; it is closed with the session.
    """

    def __init__(
        self, assembly: Assembly, *, seed: int | None = None, recording: Recording | None = None
    ) -> None:
        self.assembly = assembly
        self._recording = recording
        self._builder = RequestBuilder(
            eos_token_ids=(*assembly.spec.eos_token_ids, *assembly.tokenizer.eos_token_ids), seed=seed
        )
        self._lock = threading.Lock()

    def read_prompt(self, form: object) -> Prompt:
        """A prompt in any form, tokenized; raises `BadValueError`."""
        if isinstance(form, Mapping):
            names = [name for name in ("prompt_token_ids", "prompt") if name in form]
            if not names:
                message = f"a mapping needs `prompt` or `prompt_token_ids`, got {sorted(form)}"
                raise BadValueError("prompt", message)
            form = form[names[0]]
        if isinstance(form, str):
            ids = tuple(self.assembly.tokenizer.encode(form))
            if not ids:
                raise BadValueError("prompt", "is empty: there is nothing to continue")
            return Prompt(text=form, token_ids=ids)
        if not isinstance(form, Sequence) or isinstance(form, bytes):
            raise BadValueError("prompt", f"must be text, token ids or a mapping, got {type(form).__name__}")
        try:  # any integer type will do; the engine checks the ids against the vocabulary
            return Prompt(text=None, token_ids=tuple(map(operator.index, form)))
        except TypeError:
            raise BadValueError("prompt", f"token ids must be integers, got {form!r:.80}") from None

    def read_conversation(self, messages: Sequence[Message]) -> Prompt:
        """A conversation, rendered with the model's template and tokenized; raises `BadValueError`."""
        if not messages:
            raise BadValueError("messages", "must hold at least one message")
        ids = tuple(self.assembly.template.render(messages))
        return Prompt(text=self.assembly.tokenizer.decode(ids, skip_special_tokens=False), token_ids=ids)

    def pooler(self, *tasks: Task) -> PoolerSpec:
        """The pooler of a model that is for one of these tasks; raises `BadValueError` for any other."""
        return check_task(self.assembly.pooler, *tasks)

    def read_text(self, form: object, before: str = "", at_most: int | None = None) -> Prompt:
        """A text that is to be pooled, behind another one, cut to this many tokens; raises `BadValueError`."""
        if at_most is not None:
            check_integer("truncate_prompt_tokens", at_most, 1)
        if isinstance(form, Mapping) and "prompt_token_ids" not in form:
            form = form.get("prompt", form)
        if isinstance(form, str):
            return self._encode((before + form,), at_most)
        prompt = self.read_prompt(form)
        return attrs.evolve(prompt, token_ids=prompt.token_ids[:at_most])

    def _encode(self, texts: tuple[str, ...], at_most: int | None) -> Prompt:
        ids, second = self.assembly.tokenizer.encode_pooled(*texts, at_most=at_most)
        if not ids:
            raise BadValueError("prompt", "is empty: there is nothing to pool")
        return Prompt(text=texts[0], token_ids=tuple(ids), second=second)

    def read_pair(
        self,
        pooler: PoolerSpec,
        query: str,
        document: str,
        instruction: str | None,
        at_most: int | None = None,
    ) -> list[Prompt]:
        """The prompts that are pooled to judge a document by a query; raises `BadValueError`."""
        prompts = []
        for each in pair_prompts(pooler, query, document, instruction):
            if isinstance(each, str):
                prompts.append(self.read_text(each, at_most=at_most))
            elif isinstance(each, TextPair):
                prompts.append(self._encode((each.first, each.second), at_most))
            else:
                ids = self.assembly.template.render(each.messages, options=each.options)
                prompts.append(Prompt(text=None, token_ids=tuple(ids)))
        return prompts

    def pool(
        self, prompts: Sequence[Prompt], pooler: PoolerSpec, *, progress: bool
    ) -> list[tuple[PromptJob, tuple[float, ...]]]:
        """The finished job of each prompt, and its vector; raises as `run` does."""
        sampling, tokenizer = SamplingParams(max_tokens=1, detokenize=False), self.assembly.tokenizer
        jobs = []
        for each in prompts:
            pooling = attrs.evolve(pooler.pooling, second=each.second)
            request = self._builder.build(each.token_ids, sampling, (), pooling=pooling)
            jobs.append(PromptJob(each, request, tokenizer))
        for _ in self.run(jobs, progress=progress):
            pass
        return [(job, job.pooled) for job in jobs if job.pooled is not None]

    def job(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        priority: int = 0,
        constraint: Constraint | None = None,
        reading: Reading | None = None,
        *,
        lora: str = "",
        stream: bool = True,
    ) -> PromptJob:
        """A request that is ready to run, with the marks that a `reading` needs in its text; raises `BadValueError`."""
        check_text(self.assembly.pooler)
        if reading is not None:
            sampling = attrs.evolve(sampling, skip_special_tokens=False)
        bad_words = encode_bad_words(self.assembly.tokenizer, sampling.bad_words)
        request = self._builder.build(
            prompt.token_ids,
            sampling,
            bad_words,
            priority=priority,
            constraint=constraint,
            unsearched_token_ids=() if reading is None else reading.marks_besides(sampling.stop),
            lora=lora,
            stream=stream,
        )
        return PromptJob(prompt, request, self.assembly.tokenizer)

    def run(self, jobs: Sequence[PromptJob], *, progress: bool = False) -> Generator[EngineEvent]:
        """Run jobs together and yield every event, once its job has taken it; `progress` shows a bar in a terminal.

        Raises as `run_requests` does, `BadValueError` once a constraint cannot be kept, and `StepFailedError` at the end where the engine could not finish a request.
        """
        by_id = {job.request.request_id: job for job in jobs}
        record = self._recording.write_turns if self._recording else lambda: None
        events = run_requests(self.assembly.engine, [job.request for job in jobs], record)
        bar = _progress_bar(len(jobs), enabled=progress)
        with self._lock, without_full_collections(), contextlib.closing(events), bar as advance:
            for event in events:
                job = by_id[event.request_id]
                job.take(event)
                if isinstance(event, TokensGenerated):
                    check_fault(event.error)
                    advance(len(event.token_ids), int(event.finish_reason is not None and job.finished))
                yield event
        errors = [job.error for job in jobs if job.error]
        if errors:
            raise StepFailedError(f"{len(errors)} of {len(jobs)} requests failed: {errors[0]}")

    def close(self) -> None:
        """End the recording, if there is one; may be called twice."""
        if self._recording is not None:
            self._recording.close()


def run_requests(
    engine: EngineHandle, requests: Sequence[Request], after_turn: Callable[[], None] = lambda: None
) -> Generator[EngineEvent]:
    """Yield the engine's events until every sequence has ended; `after_turn` is called after each turn.

    Ctrl-C aborts every request; their last events are still yielded, then `KeyboardInterrupt` is raised. A caller
    that closes the iterator early aborts them too. Raises `PromptRefusedError` with the index of a refused request,
    before anything has run. Either way the engine is empty and usable afterwards.
    """
    if engine.steering.paused or engine.steering.asleep:
        raise ConflictError("the engine is paused or asleep; resume it, or wake it up")
    if engine.steering.lost:
        raise ConflictError(engine.steering.lost)
    living = {request.request_id: request.sampling.n for request in requests}
    try:
        for index, request in enumerate(requests):
            try:
                engine.add(request)
            except NanoserveError as error:
                raise PromptRefusedError(index, len(requests), error) from error
        with deferring_interrupts() as interruption:
            interrupted = False
            while living:
                if interruption.pending and not interrupted:
                    interrupted = True
                    _abort_all(engine, living)
                yield from _turn(engine, living, after_turn)
        if interrupted or interruption.pending:
            raise KeyboardInterrupt
    finally:
        _abort_all(engine, living)
        while living and engine.has_work:
            _turn(engine, living, after_turn)


class PromptRefusedError(BadValueError):
    """One of `count` prompts cannot be run; `index` says which, `reason` why."""

    def __init__(self, index: int, count: int, error: NanoserveError) -> None:
        self.index = index
        self.reason = str(error).removeprefix("prompt: ")
        if count > 1:
            super().__init__(f"prompts[{index}]", self.reason)
        else:
            parameter = error.parameter if isinstance(error, BadValueError) else "prompt"
            super().__init__(parameter, self.reason.removeprefix(f"{parameter}: "))


def _turn(engine: EngineHandle, living: dict[str, int], after_turn: Callable[[], None]) -> list[EngineEvent]:
    events = engine.turn()
    after_turn()
    for event in events:
        if isinstance(event, TokensGenerated) and event.finish_reason is not None:
            living[event.request_id] -= 1
            if not living[event.request_id]:
                del living[event.request_id]
    return events


def _abort_all(engine: EngineHandle, living: dict[str, int]) -> None:
    for request_id in living:
        engine.abort(request_id)


@contextlib.contextmanager
def _progress_bar(total: int, *, enabled: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, if that is a terminal; it is advanced by this many tokens and finished prompts."""
    console, num_tokens, shown = Console(stderr=True), 0, 0.0
    counted = TextColumn("prompts"), BarColumn(), MofNCompleteColumn()
    timed = TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
    hidden = not (enabled and console.is_terminal)
    with Progress(*counted, *timed, console=console, disable=hidden, transient=True) as progress:
        task = progress.add_task("prompts", total=total, rate="")

        def advance(tokens: int, prompts: int) -> None:
            nonlocal num_tokens, shown
            num_tokens += tokens
            elapsed = progress.tasks[0].elapsed or 0.0
            if prompts or elapsed >= shown + 0.1:  # in a crowd, to show each token takes as long as the token
                shown, rate = elapsed, f"{num_tokens / max(elapsed, 1e-9):.0f} tok/s"
                progress.update(task, advance=prompts, rate=rate)

        yield (lambda *_: None) if hidden else advance
