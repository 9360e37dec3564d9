"""Gathers the events of one request into its `RequestOutput`."""

from __future__ import annotations

import attrs

from nanoserve.entrypoints.offline.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    position_logprobs,
    prompt_positions,
)
from nanoserve.entrypoints.offline.prompts import Job
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.events import (
    EngineEvent,
    PromptScored,
    SequencePreempted,
    SequenceTimes,
    TokensGenerated,
)
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import TokenLogprobs


@attrs.define
class _Growing:
    """One sequence so far."""

    texts: list[str] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    last: TokensGenerated | None = None

    def take(self, event: TokensGenerated) -> None:
        self.texts.append(event.text)
        self.token_ids.extend(event.token_ids)
        self.logprobs.extend(event.logprobs)
        self.last = event

    @property
    def reason(self) -> FinishReason | None:
        return self.last.finish_reason if self.last else None

    @property
    def times(self) -> SequenceTimes | None:
        return self.last.times if self.last else None


class Collector:
    """One request's events go in, its output so far comes out."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self.job = job
        self._tokenizer = tokenizer
        self._sequences = [_Growing() for _ in range(job.request.sampling.n)]
        self._prompt_scores: tuple[TokenLogprobs | None, ...] | None = None
        self._preemptions = 0

    def take(self, event: EngineEvent) -> None:
        """Note one event of this request."""
        if isinstance(event, TokensGenerated):
            self._sequences[event.index].take(event)
        elif isinstance(event, PromptScored):
            self._prompt_scores = event.logprobs
        elif isinstance(event, SequencePreempted):
            self._preemptions += 1

    @property
    def finished(self) -> bool:
        """Whether all its sequences have ended."""
        return all(each.reason for each in self._sequences)

    @property
    def error(self) -> str | None:
        """What went wrong with a sequence that the engine could not finish."""
        failed = [each.last for each in self._sequences if each.reason is FinishReason.ERROR]
        return (failed[0] and failed[0].error) or "the step failed" if failed else None

    def output(self) -> RequestOutput:
        """Everything so far."""
        scores = self._prompt_scores
        return RequestOutput(
            request_id=self.job.request.request_id,
            prompt=self.job.prompt.text,
            prompt_token_ids=list(self.job.prompt.token_ids),
            prompt_logprobs=None if scores is None else prompt_positions(scores, self._tokenizer),
            outputs=[self._completion(index, each) for index, each in enumerate(self._sequences)],
            finished=self.finished,
            metrics=self._metrics(),
        )

    def _completion(self, index: int, grown: _Growing) -> CompletionOutput:
        wants_logprobs = self.job.request.sampling.logprobs is not None
        scored = [position_logprobs(each, self._tokenizer) for each in grown.logprobs]
        return CompletionOutput(
            index=index,
            text="".join(grown.texts),
            token_ids=grown.token_ids,
            logprobs=scored if wants_logprobs else None,
            cumulative_logprob=sum(each.logprob for each in grown.logprobs) if wants_logprobs else None,
            finish_reason=grown.reason.value if grown.reason else None,
            stop_reason=grown.last.stop if grown.last else None,
        )

    def _metrics(self) -> RequestMetrics | None:
        times = [each.times for each in self._sequences if each.times]
        if not times:
            return None
        return RequestMetrics(
            arrival_time=min(each.arrived for each in times),
            first_scheduled_time=min(
                (each.first_scheduled for each in times if each.first_scheduled is not None), default=None
            ),
            first_token_time=min(
                (each.first_token for each in times if each.first_token is not None), default=None
            ),
            finished_time=max((each.finished for each in times if each.finished is not None), default=None),
            num_cached_tokens=max(each.last.num_cached_tokens for each in self._sequences if each.last),
            num_preemptions=self._preemptions,
        )
