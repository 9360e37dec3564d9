"""One engine and what is needed to ask it: shared by the `LLM` class and the command line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import attrs

from nanoserve.entrypoints.app.requests import RequestBuilder, encode_bad_words
from nanoserve.entrypoints.app.traces.recording import Recording
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.offline.collecting import Collector
from nanoserve.entrypoints.offline.prompts import Job, Prompt, read_conversation, read_prompt
from nanoserve.entrypoints.offline.running import run
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.sampling import SamplingParams


@attrs.frozen
class Progressed:
    """An event and the collector that has just taken it."""

    event: EngineEvent
    collector: Collector


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
        return read_prompt(form, self.assembly.tokenizer)

    def read_conversation(self, messages: Sequence[Message]) -> Prompt:
        """A conversation, rendered and tokenized; raises `BadValueError`."""
        return read_conversation(messages, self.assembly.template, self.assembly.tokenizer)

    def job(self, prompt: Prompt, sampling: SamplingParams, priority: int = 0) -> Job:
        """A request that is ready to run; raises `BadValueError`."""
        bad_words = encode_bad_words(self.assembly.tokenizer, sampling.bad_words)
        request = self._builder.build(prompt.token_ids, sampling, bad_words, priority=priority)
        return Job(prompt=prompt, request=request)

    def run(self, jobs: Sequence[Job]) -> Generator[Progressed]:
        """Run jobs together and yield every event with the request it belongs to.

        Raises as `running.run` does, and `StepFailedError` at the end where the engine could not finish a request.
        """
        collectors: Mapping[str, Collector] = {
            job.request.request_id: Collector(job, self.assembly.tokenizer) for job in jobs
        }
        record = self._recording.write_turns if self._recording else lambda: None
        events = run(self.assembly.engine, [job.request for job in jobs], record)
        with self._lock, contextlib.closing(events):
            for event in events:
                collector = collectors[event.request_id]
                collector.take(event)
                yield Progressed(event, collector)
        errors: list[Any] = [each.error for each in collectors.values() if each.error]
        if errors:
            raise StepFailedError(f"{len(errors)} of {len(jobs)} requests failed: {errors[0]}")

    def close(self) -> None:
        """End the recording, if there is one; may be called twice."""
        if self._recording is not None:
            self._recording.close()
